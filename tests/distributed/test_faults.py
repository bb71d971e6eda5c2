"""A stage that fails in the middle of a step ends all ranks, in words and in time."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200)]

LIMIT_S = 120
"""Far below the time after which a collective gives up by itself."""


def both_ranks(*words: str) -> list[subprocess.CompletedProcess[str]]:
    """Run the script on two ranks without a launcher, which would end the other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tests.distributed.dying_stage", *words]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_PORT": port}
    shared |= {"MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
    started = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.returncode, *texts)
        for process, texts in zip(started, said, strict=True)
    ]


def test_a_killed_rank_is_told_by_the_other():
    first, second = both_ranks("killed")
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 1
    assert "stage 0 (rank 0) lost another rank in step 1" in first.stderr
    assert "step 0" in first.stdout


def test_what_a_stage_raises_is_told_where_messages_wait_for_nobody():
    first, second = both_ranks("module", "eager-1f1b")
    assert (first.returncode, second.returncode) == (1, 1)
    told = "stage 1 (rank 1) failed in step 1, in 'late' (Fails)"
    assert f"StageError: {told}" in second.stderr
    assert "StageError: stage 0 (rank 0) lost another rank in step 1" in first.stderr
    assert told in first.stderr


def test_numbers_that_are_not_finite_name_stage_and_module():
    first, second = both_ranks("nan")
    told = "on stage 1, 'late' (Fails) returned infinite numbers"
    assert told in second.stderr
    assert (first.returncode, second.returncode) == (1, 1)
    assert f"lost another rank in step 1: rank 1 has failed: {told}" in first.stderr


@pytest.mark.parametrize(
    ("how", "place", "raised"),
    [
        ("module", "in 'late' (Fails)", "KeyError: 'no such expert'"),
        ("loss", "in the loss", "ZeroDivisionError: no tokens"),
        ("operation", "in the root", "IndexError: index 8 is out of bounds"),
    ],
)
def test_what_a_stage_raises_is_told_on_both_with_its_place(how, place, raised):
    line = r"\S*tests/distributed/dying_stage\.py:\d+"
    told = (
        rf"stage 1 \(rank 1\) failed in step 1, {re.escape(place)}, {line}: "
        rf"{re.escape(raised)}"
    )
    first, second = both_ranks(how)
    assert (first.returncode, second.returncode) == (1, 1)
    assert re.search(f"StageError: {told}", second.stderr)
    assert raised in second.stderr.partition("StageError")[0]  # the cause, chained
    lost = r"StageError: stage 0 \(rank 0\) lost another rank in step 1: rank 1 has"
    assert re.search(f"{lost} failed: {told}", first.stderr)
    assert "step 0" in first.stdout
    assert "step 1" not in first.stdout
