"""What the rules look at: a configuration, a plan, a machine, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from partitioner.doctor.reading import Reading, parsed, read_sections
from partitioner.emit.ds_checks import PRECISION

if TYPE_CHECKING:
    from partitioner.doctor.machine import Machine

__all__ = ["STAGE_KEYS", "Case", "number"]

STAGE_KEYS = ("pipeline_stages", "num_stages", "stages", "pipe_parallel_size")
"""What people write into the pipeline block for the number of stages."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration with all that is known about its run.

    Args:
        config: The configuration, as DeepSpeed would read it.
        duplicates: Keys that the file has more than once.
        plan: The plan file's content, or None.
        given_stages: Pipeline ranks, if no plan says so.
        processes: Processes of the whole run, if known.
        total_steps: Optimizer steps of the whole run, if known.
        machine: Facts of this machine, or None: not asked for.
        deepspeed: DeepSpeed's version.
    """

    config: Mapping[str, Any]
    duplicates: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None
    given_stages: int | None = None
    processes: int | None = None
    total_steps: int | None = None
    machine: Machine | None = None
    deepspeed: str

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """What DeepSpeed makes of each entry, by key."""
        return read_sections(self.config)

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """The configuration with precision and ZeRO as DeepSpeed takes them."""
        return parsed(self.config)

    def accepts(self, key: str) -> bool:
        """Whether DeepSpeed reads an entry without complaint, or it is not there."""
        return key not in self.readings or not self.readings[key].refusals

    def usable(self, key: str) -> bool:
        """Whether an entry is a section that DeepSpeed accepts, or is not there."""
        is_section = isinstance(self.config.get(key, {}), Mapping)
        return is_section and self.accepts(key)

    def section(self, *path: str) -> Mapping[str, Any]:
        """Return a part of the configuration; empty if it is not there."""
        found: Any = self.parsed
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def zero_stage(self) -> int:
        """ZeRO's stage; 0 if it cannot be read."""
        return number(self.section("zero_optimization").get("stage")) or 0

    @property
    def dtype(self) -> torch.dtype:
        """The type that the configuration trains in."""
        for dtype, key in PRECISION.items():
            if self.section(key).get("enabled"):
                return dtype
        return torch.float32

    @property
    def stages(self) -> int | None:
        """Pipeline ranks: the plan's, those given, or what the file means to ask."""
        if self.plan:
            return int(self.plan["options"]["stages"])
        if self.given_stages:
            return self.given_stages
        block = self.section("pipeline")
        return next(filter(None, (number(block.get(key)) for key in STAGE_KEYS)), None)

    @property
    def replicas(self) -> int | None:
        """Pipelines side by side, where the number of processes says so."""
        if not self.processes or not self.stages:
            return None
        return max(1, self.processes // self.stages)

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of a step, where the configuration or the plan says so."""
        own = number(self.config.get("gradient_accumulation_steps"))
        if own or not self.plan:
            return own
        return int(self.plan["options"]["micro_batches"])


def number(value: Any) -> int | None:
    """Return a positive whole number; None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None
