"""The launcher returns results, shows failures and never hangs."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import LaunchError, launch

pytestmark = pytest.mark.distributed


def rank_sum(offset: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor([float(os.environ["RANK"]) + offset])
    dist.all_reduce(total)
    return dist.get_rank(), total


def fail_on_one(failing: int) -> None:
    if dist.get_rank() == failing:
        raise ValueError("this rank is broken")
    dist.barrier()


def hang() -> None:
    time.sleep(60)


def test_results_come_back_by_rank():
    results = launch(2, rank_sum, 10)
    assert [rank for rank, _ in results] == [0, 1]
    assert all(total.item() == 21.0 for _, total in results)


def test_the_failing_rank_is_shown_though_the_other_waits():
    with pytest.raises(LaunchError, match=r"(?s)rank 1 failed.*this rank is broken"):
        launch(2, fail_on_one, 1)


def test_a_hang_ends_at_the_timeout():
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"ranks \[0, 1\] of 2"):
        launch(2, hang, timeout_s=8)
    assert time.monotonic() - start < 30
