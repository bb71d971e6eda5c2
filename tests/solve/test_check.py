from __future__ import annotations

import dataclasses

import pytest

from partitioner.solve import check, solve
from tests.solve.toys import chain

PROBLEM = chain(
    (1.0, 2.0, 3.0, 4.0),
    stages=2,
    saved=[5, 5, 5, 5],
    blocks=[0, 0, 1, -1],
    trainable=[True, True, False, True],
    pins=[0, None, None, None],
    memory_limit_bytes=40,
)
SOUND = solve(PROBLEM, gap=0.0)


def test_a_sound_assignment_has_no_fault():
    assert check(PROBLEM, SOUND) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"stage_of": (0, 0, 1)}, "does not cover exactly 4 units"),
        ({"stage_of": (0, 0, 1, 2)}, "outside 0..1"),
        ({"stage_of": (0, 1, 0, 1)}, "u1 is on stage 1, after u2 on stage 0"),
        ({"stage_of": (1, 1, 1, 1)}, "u0 is pinned to stage 0"),
        ({"stage_of": (0, 0, 0, 0)}, "stage 1 has no parameter of its own"),
        ({"recomputed": (True, False, False, False)}, "only partly recomputed"),
        ({"recomputed": (False, False, False, True)}, "belongs to no block"),
        ({"objective_s": SOUND.objective_s * 1.01}, "counted"),
        ({"bound_s": SOUND.objective_s * 1.01}, "above objective"),
    ],
)
def test_every_broken_rule_is_named(change, expected):
    faults = check(PROBLEM, dataclasses.replace(SOUND, **change))
    assert any(expected in fault for fault in faults), faults


def test_memory_above_the_limit_is_named():
    tight = dataclasses.replace(PROBLEM, memory_limit_bytes=3)
    assert any("the limit is 3" in fault for fault in check(tight, SOUND))


def test_an_order_edge_counts_like_data():
    problem = dataclasses.replace(PROBLEM, values=(), order_edges=((1, 2),))
    broken = dataclasses.replace(SOUND, stage_of=(0, 1, 0, 1))
    assert any("u1 is on stage 1" in fault for fault in check(problem, broken))


@pytest.mark.parametrize(("mode", "recomputed"), [("none", True), ("all", False)])
def test_recomputation_against_the_mode_is_named(mode, recomputed):
    problem = dataclasses.replace(PROBLEM, checkpointing=mode)
    broken = dataclasses.replace(SOUND, recomputed=(recomputed,) * 3 + (False,))
    assert any("breaks checkpointing" in fault for fault in check(problem, broken))
