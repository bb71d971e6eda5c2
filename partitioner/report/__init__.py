"""Report: a plan or a verification, as a dictionary → text. Knows no torch."""

from __future__ import annotations

from partitioner.report.table import plan_report, plan_text
from partitioner.report.verification import verification_report, verification_text

__all__ = ["plan_report", "plan_text", "verification_report", "verification_text"]
