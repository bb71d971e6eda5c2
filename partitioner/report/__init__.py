"""Report: a plan or a verification, as a dictionary → text. Knows no torch."""

from __future__ import annotations

from partitioner.report.breakdown import breakdown_report, breakdown_text
from partitioner.report.comparison import comparison_report, comparison_text
from partitioner.report.explanation import explanation_report, explanation_text
from partitioner.report.inspection import inspection_report
from partitioner.report.table import plan_report, plan_text
from partitioner.report.verification import verification_report, verification_text

__all__ = [
    "breakdown_report",
    "breakdown_text",
    "comparison_report",
    "comparison_text",
    "explanation_report",
    "explanation_text",
    "inspection_report",
    "plan_report",
    "plan_text",
    "verification_report",
    "verification_text",
]
