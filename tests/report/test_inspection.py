"""Tests of partitioner.report.inspection."""

from __future__ import annotations

from partitioner.report import inspection_report, plan_text
from partitioner.report.console import to_text
from tests.report.documents import plan_document

TIMELINE = {"rows": ["rank 0 00aa  0.0 %"], "legend": "0: forward"}


def test_a_plan_alone_is_its_report() -> None:
    document = plan_document()
    assert to_text(inspection_report(document)) == plan_text(document)


def test_what_was_asked_for_follows_the_plan() -> None:
    explanation = {
        "step_s": 0.2,
        "bound_s": 0.2,
        "proof": "solved",
        "even_s": 0.2,
        "even_bubble_share": 0.0,
        "limits": [],
        "variants": [],
    }
    document = {
        **plan_document(),
        "timeline": TIMELINE,
        "comparison": {"splits": []},
        "explanation": explanation,
    }
    lines = to_text(inspection_report(document)).splitlines()

    found = [
        lines.index(title)
        for title in (
            "One step, simulated",
            "Other splits of the same model",
            "What limits this plan",
        )
    ]
    assert found == sorted(found)
    assert lines[found[0] + 1 : found[0] + 3] == [*TIMELINE["rows"], "0: forward"]
