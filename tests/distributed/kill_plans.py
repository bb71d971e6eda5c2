"""What the server of the kill runs plans once, for every process that it forks."""

from __future__ import annotations

from dataclasses import replace

from tests.distributed.kill_runs import CASES
from tests.distributed.resuming import MICRO_BATCHES, plan_of

for _run, _stages in CASES.values():
    for _count in _stages:
        plan_of(replace(_run, stages=_count), MICRO_BATCHES)
