"""A plan → all that its page shows, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.files import write_whole
from partitioner.plan.outline import outline
from partitioner.report.html import html_page, require_libraries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partitioner.plan.plan import Plan

__all__ = ["page_document", "save_page"]


def save_page(
    plan: Plan, path: str | Path, progress: Callable[[str], None] | None
) -> dict[str, Any]:
    """Write a plan's page and return the document that it shows.

    Raises:
        PartitionerError: A library of the extra ``[html]`` is missing, or the file
            cannot be written.
    """
    require_libraries()
    document = page_document(plan, progress)
    write_whole(path, html_page(document), "the page")
    return document


def page_document(
    plan: Plan, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return a plan's dictionary with what a page shows beside it.

    Args:
        plan: The plan.
        progress: Called with a sentence before each problem that is solved to find
            out what limits the plan.

    Returns:
        ``Plan.to_dict()`` with ``ranks`` (their stages, time and memory), ``events``
        (the simulated step), ``outline``, ``comparison`` and ``explanation``.
    """
    problem = plan.problem
    return {
        **plan.to_dict(),
        "ranks": [
            {
                "stages": list(problem.stages_of(rank)),
                "time_s": row.time_s,
                "memory_bytes": row.memory_bytes,
                "memory_limit_bytes": problem.limits[rank],
            }
            for rank, row in enumerate(plan.score.ranks)
        ],
        "events": [event._asdict() for event in plan.simulation.events],
        "outline": outline(plan),
        "comparison": plan.compare().to_dict(),
        "explanation": plan.explain(progress).to_dict(),
    }
