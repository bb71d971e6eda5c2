"""What the doctor knows, a family of rules in each file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.doctor.rules import (
    batch,
    checkpoint,
    data,
    host,
    keys,
    memory,
    network,
    optimizer,
    pipeline,
    precision,
    scheduler,
    software,
    zero,
)

if TYPE_CHECKING:
    from partitioner.doctor.finding import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *keys.RULES,
    *pipeline.RULES,
    *batch.RULES,
    *zero.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *scheduler.RULES,
    *checkpoint.RULES,
    *memory.RULES,
    *data.RULES,
    *software.RULES,
    *network.RULES,
    *host.RULES,
)
