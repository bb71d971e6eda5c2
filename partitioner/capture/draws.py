"""What random numbers can be, so that a comparison none can change is no read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Range", "drawn_range", "is_decided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Between which numbers every element of a draw lies.

    Args:
        low: The smallest that can come.
        high: The largest, or what all stay below.
        open: Whether ``high`` itself cannot come.
    """

    low: float
    high: float
    open: bool = False


def drawn_range(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Range | None:
    """Return the range of what a random function returns or writes; None: any number.

    Args:
        name: The function's plain name.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    if name in {"rand", "rand_like"}:
        return Range(low=0.0, high=1.0, open=True)
    if name in {"bernoulli", "bernoulli_"}:
        return Range(low=0.0, high=1.0)
    if name == "uniform_":
        ends = {"from": 0.0, "to": 1.0}
        ends |= dict(zip(ends, args[1:], strict=False)) | dict(kwargs)
        return _between(ends["from"], ends["to"])  # rounding may return the upper
    if name == "randint":
        low, high = _bounds(args, kwargs)
        return _between(low, high - 1) if type(high) is int else None
    if name == "randperm":
        count = args[0] if args else kwargs.get("n")
        return _between(0, count - 1) if type(count) is int else None
    return None


def _bounds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (low, high) of ``randint(high, size)`` or ``randint(low, high, size)``."""
    numbers = [arg for arg in args[:2] if type(arg) is int]
    high = kwargs.get("high", numbers[-1] if numbers else None)
    rest = numbers if "high" in kwargs else numbers[:-1]
    return kwargs.get("low", rest[0] if rest else 0), high


def _between(low: Any, high: Any) -> Range | None:
    known = all(type(end) in (int, float) for end in (low, high))
    return Range(low=low, high=high) if known else None


def is_decided(name: str, drawn: Range, constant: object = None) -> bool:
    """Whether comparing any number of a range with a constant gives one answer.

    Args:
        name: ``lt``, ``__lt__`` and so on; the drawn number stands on the left.
        drawn: Where it lies.
        constant: What it is compared with.
    """
    if type(constant) not in (int, float, bool) or math.isnan(constant):  # type: ignore[arg-type]
        return False
    number = float(constant)  # type: ignore[arg-type]
    above = drawn.high <= number if drawn.open else drawn.high < number
    below = drawn.low > number
    return {
        "lt": above or drawn.low >= number,
        "ge": above or drawn.low >= number,
        "le": drawn.high <= number or below,
        "gt": drawn.high <= number or below,
        "eq": above or below,
        "ne": above or below,
    }.get(_PLAIN.get(name, name.strip("_")), False)


_PLAIN = {
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "not_equal": "ne",
}
