"""The layouts that ``tune`` ranks, as engines that train."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks.speed.ours import measured
from benchmarks.speed.ranks import gather
from benchmarks.speed.runner import EngineRunner
from benchmarks.speed.setting import QUIET
from partitioner import tune

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.speed.setting import Setting
    from partitioner.tuning import Row, Tuning

__all__ = ["Tuned"]


@dataclass(frozen=True)
class Tuned:
    """What ``tune`` makes of one setting on all ranks.

    Args:
        setting: The model and its data; its micro-batches are those of all replicas.
        folder: Where timings of the model's parts are kept.
        time_limit_s: For the solver, for each layout.
    """

    setting: Setting
    folder: Path
    time_limit_s: float

    @cached_property
    def tuning(self) -> Tuning:
        """All layouts, by prices that rank 0 measured."""
        setting = self.setting
        inputs, labels = setting.data[0]
        with torch.device("meta"):
            model = setting.workload.model()
        samples = next(iter(inputs.values())).shape[0]
        return tune(
            model,
            gpus=dist.get_world_size(),
            batch=samples * setting.micro_batches,
            example_inputs=inputs,
            dtype=setting.dtype,
            measurements=measured(setting, self.folder, model, compiled=False),
            loss_fn=setting.workload.model_loss,
            example_labels=labels,
            time_limit_s=self.time_limit_s,
        )

    def ranked(self) -> list[Row]:
        """Return the layouts that every rank has a plan for, rank 0's fastest first."""
        rows = [row for row in self.tuning.rows if row.plan is not None]
        everyone = gather([(row.step_s, row.layout.name) for row in rows])
        common = set.intersection(*({name for _, name in mine} for mine in everyone))
        names = [name for _, name in sorted(everyone[0]) if name in common]
        by_name = {row.layout.name: row for row in rows}
        return [by_name[name] for name in names]

    def run(self, row: Row) -> EngineRunner:
        """Build the engine of a layout that takes all ranks.

        Args:
            row: One of :meth:`ranked`; its replicas share the setting's micro-batches.
        """
        plan, setting = row.plan, self.setting
        if plan is None:
            raise ValueError(row.layout.name)
        engine, *_ = plan.initialize(
            setting.workload.model_loss, weights=str(setting.weights), config=QUIET
        )
        replica = engine.grid.get_data_parallel_id()
        mine = setting.data[replica :: row.layout.replicas]
        return EngineRunner(engine, itertools.cycle(mine), [row.layout.name])
