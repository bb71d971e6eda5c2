"""Models of the zoo, planned and trained as pipelines, next to their originals.

``make parity`` trains all of them; here are ten, and what the zoo has none of.
"""

from __future__ import annotations

import pytest

from tests.distributed.parity_table import runs_in_bf16, runs_of
from tests.distributed.zoo_compare import Row, rows_of
from tests.distributed.zoo_runs import Run, Task

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

SPREAD = [
    "complex layer",
    "in-place and views",
    "integer inputs",
    "lora on llama",
    "mixture of experts",
    "shared statistics",
    "sparse gradients",
    "spectral norm",
    "stochastic depth",
    "u-net",
]
CLIPPING = 0.05
TIES = 5
"""The model's table, its shared layer's two, its frozen weight and its scalar."""


def woven(cut_seed: int, **options: object) -> Run:
    """Return a run of the model with many ties, clipped, cut at random."""
    task = Task(
        name="woven",
        clipping=CLIPPING,
        **{k: options.pop(k) for k in ("replicas", "bf16", "rounded") if k in options},  # type: ignore[arg-type]
    )
    return Run(task=task, cut_seed=cut_seed, **{"stages": 3, **options})  # type: ignore[arg-type]


def check(rows: list[Row]) -> None:
    faults = [f"{row.run}: {fault}" for row in rows for fault in row.faults]
    faults += [f"{row.run}: {row.refused}" for row in rows if row.refused]
    assert not faults, "\n".join(faults)


def test_ten_models_and_all_kinds_of_ties_on_three_stages():
    """All stages are recomputed; one more run of the ties recomputes nothing."""
    ties = [
        woven(1, recomputed=True),
        woven(4, recomputed=True),
        woven(5),
    ]
    rows = list(rows_of([*runs_of(SPREAD, 3), *ties]))
    assert len(rows) == len(SPREAD) + len(ties)
    check(rows)
    assert [row.ties for row in rows[len(SPREAD) :]] == [TIES] * len(ties)


def test_replicas_with_unusual_parameters_ties_and_bf16():
    """Two replicas of two stages; ZeRO-1 and not; each replica's weights differ."""
    rows = list(
        rows_of(
            [
                Run(
                    task=Task(name="unusual parameters", replicas=2, clipping=CLIPPING),
                    stages=2,
                ),
                Run(
                    task=Task(name="sparse gradients", replicas=2, clipping=CLIPPING),
                    stages=2,
                ),
                woven(1, stages=2, replicas=2),
                woven(3, stages=2, replicas=2, zero=1),
                woven(4, stages=2, replicas=2, zero=1, bf16=True, rounded=True),
                *runs_in_bf16(["passes structures", "mistral"]),
            ]
        )
    )
    check(rows)
    assert [row.ties for row in rows[2:5]] == [TIES] * 3
