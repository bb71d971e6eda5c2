"""Train models of the zoo as pipelines on this rank, one after the other."""

from __future__ import annotations

import pickle
import random
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn

from partitioner import PartitionerError, Plan, partition
from partitioner.emit import Layers, Placement, emit
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.verify.seeding import Seeding
from tests.distributed.tied_models import Woven
from tests.distributed.zoo_runs import (
    MICRO_BATCHES,
    MODELS,
    Outcome,
    Run,
    batches,
    loss_of,
    make_optimizer,
    modes_of,
)
from tests.placements import random_assignment
from tests.zoo.entry import built, example

__all__ = ["LIMIT_S", "train_stages"]

LIMIT_S = 180
"""A rank that takes longer for one run hangs, and is ended by an alarm."""


@dataclass(frozen=True, kw_only=True)
class _TestedPlan(Plan):
    """A plan whose segments may seed each draw, as ``verify`` does, and run again."""

    seeding: Seeding | None
    recomputed: bool

    @cached_property
    def placement(self) -> Placement:
        found = super().placement
        if not self.recomputed:
            return found
        # Whole stages; what shares written memory with another stage is left out.
        return replace(found, block_of=dict.fromkeys(found.stage_of, "stage"))

    @cached_property
    def layers(self) -> Layers:
        seeder = None if self.seeding is None else self.seeding.seeder
        return emit(self.graph, self.placement, seeder=seeder)


def train_stages(runs: Sequence[Run], first: int, folder: str) -> None:
    """Train this rank's stage of every run; write each outcome as soon as it is there.

    Args:
        runs: All runs.
        first: Where to begin.
        folder: Gets ``<number of the run>-<rank>``.
    """
    for number in range(first, len(runs)):
        signal.alarm(LIMIT_S)
        place = Path(folder) / f"{number}-{dist.get_rank()}"
        try:
            found: Any = _train(runs[number])
        except Exception:
            place.write_bytes(pickle.dumps(traceback.format_exc()))
            raise
        place.write_bytes(pickle.dumps(found))
        signal.alarm(0)


def _train(run: Run) -> Outcome:
    started = time.perf_counter()
    entry = MODELS[run.task.name]
    try:
        engine, *_ = _plan(run).initialize(
            loss_of, config=_config(run), optimizer=make_optimizer
        )
    except PartitionerError as error:
        return Outcome(refused=f"{type(error).__name__}: {error.message}")
    module = engine.module
    replica = module._grid.get_data_parallel_id()
    found = Outcome()
    for micro_batches in batches(entry, replica):
        found.losses.append(engine.train_batch(iter(micro_batches)).item())
    for layer in module.forward_funcs:
        found.modes |= modes_of(layer)
        found.recomputed += isinstance(layer, CheckpointedSegment)
    found.evaluated = engine.eval_batch(iter(batches(entry, replica)[0])).item()
    found.parameters = {
        name: _exact(run, parameter)
        for name, parameter in _held(module.forward_funcs, "named_parameters")
    }
    found.buffers = {
        name: buffer.detach().clone()
        for name, buffer in _held(module.forward_funcs, "named_buffers")
    }
    engine.destroy()
    dist.barrier()
    found.seconds = time.perf_counter() - started
    return found


def _plan(run: Run) -> Plan:
    entry = MODELS[run.task.name]
    model = built(entry)
    disturb(model, run.task.replicas)
    plan = partition(
        model,
        run.stages,
        example_inputs=example(entry),
        micro_batches=MICRO_BATCHES,
        device="cpu",
        dtype="bfloat16" if run.task.bf16 else None,
        optimizer="sgd-momentum",
        checkpointing="none",
        gap=0.05,
        time_limit_s=10,
    )
    if run.cut_seed is not None:
        assignment = random_assignment(plan, random.Random(run.cut_seed))
        plan = replace(plan, assignment=assignment)
    # Fields only: what a plan has computed already is not the other's.
    fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    seeding = Seeding(plan.graph) if run.seeded else None
    return _TestedPlan(**fields, seeding=seeding, recomputed=run.recomputed)


def disturb(model: nn.Module, replicas: int) -> None:
    """Change what the first replica, or the first stage that has it, decides."""
    if dist.get_rank() % replicas:
        for value in (*model.parameters(), *model.buffers()):
            value.data += 1
    elif dist.get_rank() and isinstance(model, Woven):
        model.places += 1  # read by the first stage as well


def _config(run: Run) -> dict[str, Any]:
    return {
        "steps_per_print": 10**9,
        "gradient_clipping": run.task.clipping,
        "zero_optimization": {"stage": run.zero},
        "zero_allow_untested_optimizer": True,
    }


def _held(layers: Sequence[nn.Module], what: str) -> Iterator[tuple[str, Tensor]]:
    for layer in layers:
        yield from getattr(layer, what)(remove_duplicate=False)


def _exact(run: Run, parameter: Any) -> Tensor:
    """Return a parameter, of ZeRO's its float32 copy: every replica must ask."""
    found: Tensor = parameter
    if run.task.bf16 and parameter.requires_grad:
        found = safe_get_full_fp32_param(parameter)
    return found.detach().clone()
