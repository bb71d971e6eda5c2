"""Simulation → a grid of characters: ranks down, time across."""

from __future__ import annotations

from itertools import groupby
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.simulate.simulation import Event, Simulation

__all__ = ["LEGEND", "grid"]

WIDTH = 80
"""Columns that every report fits."""
_SHARE_WIDTH = len(" 100.0 %")
"""Columns of a row's bubble."""
_FEWEST_COLUMNS = 10
_IDLE = "·"
_MARKS = {
    "forward": digits,
    "backward": ascii_lowercase[:10],
    "input_gradient": ascii_lowercase[:10],
    "weight_gradient": ascii_uppercase[:10],
    "activation": "-",
    "gradient": "-",
}
"""What an event looks like, by its micro-batch modulo the number of marks."""

LEGEND = (
    "0–9: forward of micro-batches 0 to 9, and again from 10. a–j: their backward "
    "(recomputation included). A–J: weight gradients where they run apart. "
    "-: sending or receiving. ·: idle. At the right: each row's bubble."
)


def grid(simulation: Simulation, *, width: int = WIDTH) -> str:
    """Draw the step, one row for each rank, scaled to a width.

    Starts and ends are rounded to whole columns; what is shorter than one may not be
    seen.

    Args:
        simulation: What to draw.
        width: Columns of a whole line, labels included.

    Returns:
        One line for each rank, with its bubble at the end.
    """
    labels = [f"rank {index} " for index in range(len(simulation.ranks))]
    label_width = max(map(len, labels))
    columns = max(_FEWEST_COLUMNS, width - label_width - _SHARE_WIDTH)
    rows = [[_IDLE] * columns for _ in simulation.ranks]
    for rank, events in groupby(simulation.events, key=lambda event: event.rank):
        _fill(rows[rank], list(events), simulation.step_s)
    return "".join(
        f"{label:<{label_width}}{''.join(row)}{100 * share:>6.1f} %\n"
        for label, row, share in zip(
            labels, rows, simulation.bubble_shares, strict=True
        )
    )


def _fill(row: list[str], events: Sequence[Event], step_s: float) -> None:
    """Write every event over its columns."""
    per_s = len(row) / step_s if step_s > 0 else 0.0
    for event in events:
        marks = _MARKS[event.kind]
        mark = marks[event.micro_batch % len(marks)]
        first = round(event.start_s * per_s)
        last = round(event.end_s * per_s)
        row[first:last] = mark * (last - first)
