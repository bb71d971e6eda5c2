"""ModelGraph and Placement → Verification: prove the cut model equal before launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partitioner.emit import Placement, emit
from partitioner.errors import ForwardError, PartitionerError
from partitioner.verify.compare import Verification, compare
from partitioner.verify.run import run_cut, run_original
from partitioner.verify.seeding import Seeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from partitioner.graph import ModelGraph
    from partitioner.verify.run import Outcome

__all__ = ["NUDGES", "Verification", "verify"]

TOLERANCE = 1e-5
"""Largest relative error that counts as rounding, in float32."""
ROUNDINGS = 2
"""In coarser dtypes a tie's gradients may round this often where the order of their
sum differs."""

NUDGES = 3
"""Runs that show how far rounding moves a gradient: a single number may stand still by
chance in one of them."""


def verify(
    graph: ModelGraph,
    placement: Placement,
    tensors: Sequence[Tensor],
    *,
    tolerance: float | None = None,
) -> Verification:
    """Run the cut model in one process through the real wire format.

    A step in train mode, then one in eval mode, forward and backward, with dropout on
    and each random call seeded on both sides by what it is. It does not test
    DeepSpeed's engine.

    Args:
        graph: The recorded model, which is run and left as it was.
        placement: How it is cut.
        tensors: Input tensors in the order of ``graph.inputs``.
        tolerance: Largest relative error that counts as equal; None: 1e-5, or the
            rounding of a coarser dtype.

    Raises:
        PartitionerError: The model has no weights (it is on ``meta``).
        ForwardError: The original model fails on these inputs (chained).
    """
    if any(p.device.type == "meta" for p in graph.model.parameters()):
        message = "the model is on the meta device: it has no weights to run with"
        raise PartitionerError(message, hint="verify a small configuration of it")
    seeding = Seeding(graph)
    layers = emit(graph, placement, seeder=seeding.seeder)
    originals = _originals(graph, seeding, tensors)
    cuts = run_cut(graph, layers, tensors)
    if tolerance is None:
        tolerance = max(TOLERANCE, ROUNDINGS * torch.finfo(graph.dtype).eps)
    modes = {name: compare(originals[name], cuts[name]) for name in originals}
    if any(mode.max_gradient_error > tolerance for mode in modes.values()):
        # Perhaps only gradients that are zero but for rounding: see how far they move.
        nudged = [run_original(graph, seeding, tensors, nudge=n) for n in range(NUDGES)]
        modes = {
            name: compare(originals[name], cuts[name], [run[name] for run in nudged])
            for name in originals
        }
    return Verification(modes=modes, tolerance=tolerance)


def _originals(
    graph: ModelGraph, seeding: Seeding, tensors: Sequence[Tensor]
) -> dict[str, Outcome]:
    try:
        return run_original(graph, seeding, tensors)
    except Exception as error:
        name = type(graph.model).__name__
        message = (
            f"{name} itself fails on these inputs: {type(error).__name__}: {error}"
        )
        hint = f"run its forward and backward alone, in {graph.dtype}"
        raise ForwardError(message, hint=hint) from error
