"""A rank that is killed costs the steps since the last checkpoint, and nothing else."""

from __future__ import annotations

import pytest

from tests.distributed.kill_runs import Kill, distance, start, survive
from tests.distributed.resuming import Run

pytestmark = pytest.mark.distributed

STEPS = 10
KILLS = [
    Kill(rank=0, step=5, write=8),  # the first checkpoint is half written
    Kill(rank=1, step=10, write=3),  # so is the second; the first one is resumed
]


def test_a_run_that_was_killed_while_saving_ends_like_one_that_was_not(tmp_path):
    calm = start(Run(), tmp_path / "calm", STEPS, None)
    last = survive(Run(), tmp_path / "killed", STEPS, KILLS, (2, 3))
    assert len(last[0].losses) == STEPS - 5
    losses, parameters = distance(calm, last)
    assert losses <= 1e-6
    assert parameters <= 1e-6
