"""An explanation's dictionary → what limits a plan, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

__all__ = ["explanation_lines", "explanation_report", "explanation_text"]

_LABEL_WIDTH = len("checkpointed")
"""As under the table of stages, so that the two line up."""


def explanation_report(explanation: Mapping[str, Any]) -> RenderableType:
    """Build the explanation.

    Args:
        explanation: What ``Explanation.to_dict()`` returns.

    Returns:
        A grid of two columns: the label, and what there is to say.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=_LABEL_WIDTH)
    grid.add_column(overflow="fold")
    for label, words in explanation_lines(explanation):
        grid.add_row(Text(label, style="bold"), Text(words))
    return grid


def explanation_text(
    explanation: Mapping[str, Any], *, width: int = DEFAULT_WIDTH
) -> str:
    """Write the explanation as plain text.

    Args:
        explanation: What ``Explanation.to_dict()`` returns.
        width: Columns to fit.
    """
    return to_text(explanation_report(explanation), width=width)


def explanation_lines(explanation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield labels and words; a label is empty where it is the one before it.

    Args:
        explanation: What ``Explanation.to_dict()`` returns.
    """
    step_s, bound_s = explanation["step_s"], explanation["bound_s"]
    yield (
        "bound",
        f"the step takes {format_seconds(step_s)}, and no plan takes less than"
        f" {format_seconds(bound_s)} ({explanation['proof']})",
    )
    yield (
        "equal stages",
        f"that send nothing would take {format_seconds(explanation['even_s'])}, of"
        f" which {format_share(explanation['even_bubble_share'])} is bubble",
    )
    limits = [limit["words"] for limit in explanation["limits"]]
    limits = limits or ["nothing but the work itself and the bubble"]
    for label, words in zip(["limited by", *[""] * len(limits)], limits, strict=False):
        yield label, words
    for label, variant in zip(
        ["what if", *[""] * len(explanation["variants"])],
        explanation["variants"],
        strict=False,
    ):
        yield label, _variant(variant, step_s)


def _variant(variant: Mapping[str, Any], step_s: float) -> str:
    if variant["step_s"] is None:
        return f"{variant['change']}: no plan; {variant['reason']}"
    change = variant["step_s"] / step_s - 1 if step_s > 0 else 0.0
    return (
        f"{variant['change']}: {format_seconds(variant['step_s'])}"
        f" ({100 * change:+.1f} %), bubble {format_share(variant['bubble_share'])}, at"
        f" most {format_bytes(variant['memory_bytes'])} on a stage"
    )
