"""Tests of the page's sections: what their tables and pictures are given."""

from __future__ import annotations

from typing import Any

import pytest

from partitioner.report.html import (
    boundaries,
    comparison,
    limits,
    memory,
    notes,
    stages,
    summary,
    timeline,
)
from partitioner.report.units import format_bytes, format_seconds
from tests.report.html.documents import page_of_gpt2
from tests.report.html.plans import zoo_plan


def values(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows that a chart of Vega has been given."""
    rows = [data["values"] for data in chart["data"] if "values" in data]
    return [row for found in rows if isinstance(found, list) for row in found]


def lines(chart: dict[str, Any]) -> list[list[str]]:
    """Rows of a chart whose data is text."""
    (text,) = [d["values"] for d in chart["data"] if isinstance(d.get("values"), str)]
    return [line.split(",") for line in text.splitlines()]


def test_bars_and_table_of_stages_say_the_plans_times():
    plan = zoo_plan("gpt-2")
    found = stages.section(page_of_gpt2())
    for row, stage in zip(found.context["rows"], plan.stages, strict=True):
        assert row["time"] == format_seconds(stage.time_s)
        assert row["times"][0] == format_seconds(stage.forward_s)
    bars = values(found.charts["stage-times"])
    forward = [bar["time_s"] for bar in bars if bar["kind"] == "forward"]
    assert forward == [stage.forward_s for stage in plan.stages]
    assert bars[0]["said"] == f"stage 0, forward: {bars[0]['time']}"


def test_what_no_stage_does_has_no_column():
    assert "recomputation" not in stages.section(page_of_gpt2()).context["kinds"]
    document = page_of_gpt2()
    document["stages"][1]["recompute_s"] = 0.25
    found = stages.section(document)
    assert "recomputation" in found.context["legend"]
    column = found.context["kinds"].index("recomputation")
    cells = [row["times"][column] for row in found.context["rows"]]
    assert cells == ["–", "250 ms", "–"]


def test_memory_by_kind_adds_up_and_far_limits_are_not_drawn():
    document = page_of_gpt2()
    found = memory.section(document)
    bars = values(found.charts["memory-kinds"])
    for stage in document["stages"]:
        parts = [b["bytes"] for b in bars if b["label"] == f"stage {stage['index']}"]
        assert sum(parts) == stage["memory_bytes"]
    assert not found.context["drawn"]
    for rank in document["ranks"]:
        rank["memory_limit_bytes"] = 2 * 2**20
    near = memory.section(document)
    assert near.context["drawn"]
    limit = [b for b in values(near.charts["memory-kinds"]) if "limit" in b["said"]]
    assert [bar["said"] for bar in limit] == [
        f"stage {stage}, limit: 2.00 MiB" for stage in range(3)
    ]


def test_stages_that_share_a_rank_have_its_limit_in_a_table_of_ranks():
    document = page_of_gpt2()
    rank = {"memory_bytes": 3 * 2**20, "memory_limit_bytes": 4 * 2**20, "time_s": 1.0}
    document["ranks"] = [{**rank, "stages": [0, 2]}, {**rank, "stages": [1]}]
    document["bottleneck_stage"] = 0
    found = memory.section(document).context
    assert not found["alone"]
    assert found["ranks"][0] == {
        "stages": "0, 2",
        "peak": "3.00 MiB",
        "limit": "4.00 MiB",
        "share": "75.0 %",
    }
    shown = {f["label"]: f for f in summary.section(document).context["figures"]}
    assert shown["bottleneck"]["figure"] == "stages 0, 2"
    assert "of 4.00 MiB" in shown["memory"]["sentence"]
    busiest = [row["busiest"] for row in stages.section(document).context["rows"]]
    assert busiest == [True, False, True]


def test_no_limit_is_none():
    document = page_of_gpt2()
    for rank in document["ranks"]:
        rank["memory_limit_bytes"] = None
    assert memory.section(document).context["ranks"][0]["limit"] == "none"
    shown = {f["label"]: f for f in summary.section(document).context["figures"]}
    assert shown["memory"]["sentence"].endswith("the fullest")


@pytest.mark.parametrize(
    ("gap", "figure"), [(0.0, "optimal"), (0.0123, "1.23 %"), (0.5, "50.0 %")]
)
def test_only_a_proven_plan_is_called_optimal(gap: float, figure: str):
    shown = summary.section(page_of_gpt2(gap=gap)).context["figures"]
    assert [f["figure"] for f in shown if f["label"] == "gap"] == [figure]


def test_the_plan_is_set_next_to_the_best_rival_that_can_train():
    document = page_of_gpt2()
    splits = document["comparison"]["splits"]
    for split, step_s in zip(splits, (2.0, 3.0, 2.5, 1.0, 1.0), strict=True):
        split["simulated_s"], split["faults"] = step_s, []
    splits[2]["faults"] = ["out of memory on stage 0"]
    shown = {f["label"]: f for f in summary.section(document).context["figures"]}
    assert shown["speed, next to DeepSpeed uniform"]["figure"] == "1.50 ×"
    found = comparison.section(document)
    assert [split["name"] for split in found.context["faults"]] == [splits[2]["name"]]
    assert found.context["rows"][1][-1] == "+50.0 %"
    bars = values(found.charts["other-splits"])
    assert [bar["step_s"] for bar in bars] == [2.0, 3.0, 2.5, 1.0, 1.0]


def test_boundaries_add_up_what_crosses():
    document = page_of_gpt2()
    for shown, found in zip(
        boundaries.section(document).context["boundaries"],
        document["boundaries"],
        strict=True,
    ):
        total = sum(value["bytes"] for value in found["values"])
        assert shown["bytes"] == format_bytes(total)
        assert shown["after"] == shown["before"] + 1
        assert all(value["source"] for value in shown["values"])


def test_the_step_has_every_event_of_the_simulation():
    plan = zoo_plan("gpt-2")
    found = timeline.section(page_of_gpt2())
    heading, *rows = lines(found.charts["step-events"])
    events = [dict(zip(heading, row, strict=True)) for row in rows]
    assert len(events) == len(plan.simulation.events)
    assert found.context["hidden"] == 0
    for shown, event in zip(events, plan.simulation.events, strict=True):
        assert float(shown["start"]) == pytest.approx(event.start_s, rel=1e-5)
        assert float(shown["end"]) == pytest.approx(event.end_s, rel=1e-5)
        assert shown["batch"] == str(event.micro_batch)
        assert shown["rank"].startswith(f"rank {event.rank} · ")


def event(kind: str, number: int) -> dict[str, Any]:
    return {
        "rank": 0,
        "kind": kind,
        "chunk": 0,
        "micro_batch": number,
        "start_s": float(number),
        "end_s": number + 0.5,
    }


def test_a_long_step_loses_its_messages_first_then_its_middle():
    shown = timeline.EVENTS_SHOWN
    passes = [event("forward", number) for number in range(shown)]
    messages = [event("activation", number) for number in range(10)]
    found = timeline.section(page_of_gpt2(events=[*passes, *messages]))
    rows = lines(found.charts["step-events"])[1:]
    assert found.context["hidden"] == 10
    assert {row[1] for row in rows} == {"forward"}
    assert "communication" not in found.context["legend"]

    passes = [event("forward", number) for number in range(shown + 100)]
    found = timeline.section(page_of_gpt2(events=passes))
    numbers = [int(row[2]) for row in lines(found.charts["step-events"])[1:]]
    half = shown // 2
    assert numbers == [*range(half), *range(half + 100, shown + 100)]
    assert found.context["hidden"] == 100


def test_limits_are_the_words_of_the_explanation():
    document = page_of_gpt2()
    found = limits.section(document).context["entries"]
    assert list(found) == ["bound", "equal stages", "limited by", "what if"]
    assert len(found["what if"]) == len(document["explanation"]["variants"])


def test_what_has_no_price_is_alarming_and_long_lists_are_folded():
    document = page_of_gpt2(
        unpriced=[{"operator": "frobnicate", "count": 2, "where": "net (a.py:3)"}],
        assumptions=[f"assumption {number}" for number in range(20)],
    )
    found = {e["label"]: e for e in notes.section(document).context["entries"]}
    assert found["not priced"]["alarming"]
    assert found["not priced"]["values"] == ["frobnicate (2 times) in net (a.py:3)"]
    assert found["assumptions"]["folded"]
    assert len(found["assumptions"]["values"]) == 20
    assert "step time" not in found
    plain = {e["label"]: e for e in notes.section(page_of_gpt2()).context["entries"]}
    assert not plain["gap"]["alarming"]
