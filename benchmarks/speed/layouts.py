"""What came of each layout, next to what ``tune`` had said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Result", "layout_table"]

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Result:
    """One layout, trained.

    Args:
        name: ``tune``'s, or what was written by hand.
        gpus: How many work together.
        items: Tokens or samples of one step.
        unit: What ``items`` counts.
        step_s: Median of the steps, the slowest rank's.
        predicted_s: What ``tune`` said; None: it said nothing.
        bubble: Mean over the ranks of the share of a step without a computing kernel.
        predicted_bubble: The simulator's.
        peak_bytes: Of the fullest GPU.
        loss: Of the first step.
    """

    name: str
    gpus: int
    items: int
    unit: str
    step_s: float
    predicted_s: float | None
    bubble: float
    predicted_bubble: float | None
    peak_bytes: int
    loss: float

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.items / self.step_s

    def __str__(self) -> str:
        """Return it in a line."""
        return (
            f"{self.name}: {self.rate:,.0f} {self.unit}/s, step {self.step_s:.3f} s, "
            f"loss {self.loss:.4f}"
        )


def layout_table(results: Sequence[Result]) -> str:
    """Return a line for each layout, and how ``tune``'s first choice did.

    Args:
        results: In the order in which they ran; a speed-up is over the one GPU.
    """
    one = next((result for result in results if result.gpus == 1), None)
    unit = f"{results[0].unit}/s" if results else "rate"
    head = (
        f"{'layout':<32} {unit:>10} {'speed-up':>8} {'step':>9} {'predicted':>9} "
        f"{'ratio':>6} {'bubble':>7} {'predicted':>9} {'GiB':>6} {'loss':>8}"
    )
    lines = [head, *(_line(result, one) for result in results)]
    return "\n".join([*lines, *_choice(results)])


def _line(result: Result, one: Result | None) -> str:
    speed_up = f"{result.rate / one.rate:.2f}" if one else ""
    predicted = f"{result.predicted_s:.3f} s" if result.predicted_s else ""
    ratio = f"{result.predicted_s / result.step_s:.3f}" if result.predicted_s else ""
    bubble = result.predicted_bubble
    return (
        f"{result.name:<32} {result.rate:>10,.0f} {speed_up:>8} "
        f"{result.step_s:>7.3f} s {predicted:>9} {ratio:>6} {result.bubble:>7.1%} "
        f"{f'{bubble:.1%}' if bubble is not None else '':>9} "
        f"{result.peak_bytes / _GIB:>6.1f} {result.loss:>8.4f}"
    )


def _choice(results: Sequence[Result]) -> list[str]:
    """Say how far ``tune``'s first choice is from the fastest."""
    together = [result for result in results if result.gpus > 1]
    planned = [result for result in together if result.predicted_s]
    if not planned:
        return []
    first = min(planned, key=lambda result: result.predicted_s or 0.0)
    best = min(together, key=lambda result: result.step_s)
    behind = first.step_s / best.step_s - 1
    return [f"tune's first choice, {first.name}: {behind:.1%} behind {best.name}"]
