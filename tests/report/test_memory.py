"""Tests of partitioner.report.memory."""

from __future__ import annotations

from partitioner.report.memory import memory_parts
from tests.report.documents import GIB, MIB, stage_document


def test_parts_add_up_to_the_peak():
    parts = memory_parts(stage_document(0, ["net"]))
    named = dict(parts)
    assert named["weights"] == named["gradients"] == 512 * MIB
    assert named["optimizer states"] == 2 * GIB
    assert named["buffers of ZeRO"] == 0
    assert named["one layer recomputed, and its backward"] == 384 * MIB
    # Static 3 GiB, in flight 2 GiB and 128 MiB, the wire's 128 MiB, the moment's 384.
    assert sum(nbytes for _, nbytes in parts) == 5 * GIB + 640 * MIB


def test_a_step_of_the_optimizer_that_needs_more_takes_the_place_of_activations():
    memory = stage_document(0, ["net"])["memory"] | {"step_bytes": 4 * GIB}
    parts = dict(memory_parts(stage_document(0, ["net"], memory=memory)))
    assert parts["the optimizer's step (activations need less)"] == 4 * GIB
    assert "activations in flight" not in parts
