"""ModelGraph and Placement → Verification: prove the cut model equal before launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.emit import Placement, emit
from partitioner.errors import PartitionerError
from partitioner.verify.compare import Verification, compare
from partitioner.verify.run import run_cut, run_original
from partitioner.verify.seeding import Seeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from partitioner.graph import ModelGraph

__all__ = ["Verification", "verify"]

TOLERANCE = 1e-5
"""Largest relative error that counts as rounding, for float32."""


def verify(
    graph: ModelGraph,
    placement: Placement,
    tensors: Sequence[Tensor],
    *,
    tolerance: float = TOLERANCE,
) -> Verification:
    """Run the cut model in one process through the real wire format.

    Forward and backward, in train and in eval mode, with dropout on and each random
    call seeded on both sides by what it is. It does not test DeepSpeed's engine.

    Args:
        graph: The recorded model, which is run and left as it was.
        placement: How it is cut.
        tensors: Input tensors in the order of ``graph.inputs``.
        tolerance: Largest relative error that counts as equal.

    Raises:
        PartitionerError: The model has no weights (it is on ``meta``).
    """
    if any(p.device.type == "meta" for p in graph.model.parameters()):
        message = "the model is on the meta device: it has no weights to run with"
        raise PartitionerError(message, hint="verify a small configuration of it")
    seeding = Seeding(graph)
    layers = emit(graph, placement, seeder=seeding.seeder)
    modes = {}
    for name, training in (("train", True), ("eval", False)):
        original = run_original(graph, seeding, tensors, training=training)
        cut = run_cut(graph, layers, tensors, training=training)
        modes[name] = compare(original, cut)
    return Verification(modes=modes, tolerance=tolerance)
