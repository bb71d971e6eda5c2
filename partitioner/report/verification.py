"""A verification's dictionary → the table of differences that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.units import format_error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["verification_report", "verification_text"]

_COLUMNS = {
    "max_output_error": "Outputs",
    "max_gradient_error": "Gradients",
    "max_buffer_error": "Buffers",
}
_PARAMETERS_SHOWN = 10
"""Parameters listed, the worst first; the JSON form has all of them."""


def verification_report(verification: Mapping[str, Any]) -> RenderableType:
    """Build the report of a verification.

    Args:
        verification: What ``Verification.to_dict()`` returns: ``ok``, ``tolerance``,
            the largest relative error of each kind by mode, and the relative error of
            each parameter's gradient.

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    tolerance = verification["tolerance"]
    verdict = Text(_verdict(verification), style="bold")
    parts: list[RenderableType] = [_mode_table(verification["modes"], tolerance)]
    worst = _worst(verification["per_parameter"])
    if worst:
        parts.append(_parameter_table(worst, tolerance))
    return Group(*parts, verdict)


def verification_text(
    verification: Mapping[str, Any], *, width: int = DEFAULT_WIDTH
) -> str:
    """Write the report of a verification as plain text.

    Args:
        verification: What ``Verification.to_dict()`` returns.
        width: Columns to fit.

    Returns:
        The report without colour, ending in one newline.
    """
    return to_text(verification_report(verification), width=width)


def _verdict(verification: Mapping[str, Any]) -> str:
    limit = format_error(verification["tolerance"])
    if verification["ok"]:
        return f"ok: every difference is at most {limit}, relative"
    return f"FAILED: a difference is above {limit}, relative (marked !)"


def _mode_table(modes: Mapping[str, Mapping[str, Any]], tolerance: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Largest relative difference")
    table.add_column("Mode")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for mode, errors in modes.items():
        cells = [_error(errors.get(key), tolerance) for key in _COLUMNS]
        table.add_row(Text(mode), *cells)
    return table


def _parameter_table(worst: list[tuple[str, float]], tolerance: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Gradients that differ most")
    table.add_column("Parameter", overflow="fold")
    table.add_column("Difference", justify="right")
    for name, error in worst:
        table.add_row(Text(name), _error(error, tolerance))
    return table


def _worst(per_parameter: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the parameters whose gradients are off by most, not a number first."""
    different = [(n, e) for n, e in per_parameter.items() if e != 0]
    different.sort(key=lambda entry: (entry[1] != entry[1], entry[1]), reverse=True)
    return different[:_PARAMETERS_SHOWN]


def _error(error: float | None, tolerance: float) -> Text:
    if error is None:
        return Text("–")
    if error <= tolerance:
        return Text(format_error(error))
    # Not `error > tolerance`: a comparison with nan is false, and nan has failed.
    return Text(f"! {format_error(error)}", style="bold red")
