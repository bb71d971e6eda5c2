"""Floor divisions ``(size + offset) // divisor`` through given points: all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Samples", "Window", "best_split", "division", "windows"]

LARGEST_DIVISOR = 512
"""Of strided layers together; 320 in speech models."""

Samples = tuple[tuple[int, int], ...]
"""(size, what was found there) pairs; the example's first."""


@dataclass(frozen=True, slots=True)
class Window:
    """The offsets that fit with one divisor: ``low`` to ``high``, fewer than that."""

    divisor: int
    low: int
    high: int

    def values(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield (value, how many of the offsets give it) at a size."""
        value = (size + self.low) // self.divisor
        last = min(self.high, (value + 1) * self.divisor - size - 1)
        yield value, last - self.low + 1
        if last < self.high:
            yield value + 1, self.high - last


@lru_cache(maxsize=1024)
def windows(samples: Samples) -> tuple[Window, ...]:
    """Return every divisor for which some offset gives all samples.

    A divisor above the example's size is none: what is left would be one or nothing.
    """
    found = []
    for divisor in range(2, min(LARGEST_DIVISOR, samples[0][0]) + 1):
        shifts = [value * divisor - size for size, value in samples]
        low, high = max(shifts), min(shifts) + divisor - 1
        if low <= high:
            found.append(Window(divisor, low, high))
    return tuple(found)


def division(samples: Samples) -> tuple[int, int] | None:
    """Return (divisor, offset) that give all samples: a usual offset, or the nearest.

    Usual are those of rounding down, and up, and of the common kernel sizes.
    """
    found = windows(samples)
    for window in found:
        for offset in (0, -1, 1, window.divisor - 1):
            if window.low <= offset <= window.high:
                return window.divisor, offset
    nearest = [(w.divisor, max(w.low, min(0, w.high))) for w in found]
    return min(nearest, key=lambda pair: abs(pair[1]), default=None)


def best_split(samples: Samples, taken: set[int]) -> int | None:
    """Return a size at which the divisions through the samples differ most.

    Args:
        samples: What is known.
        taken: Sizes that cannot be asked for.

    Returns:
        None if they differ at none of the sizes around the example's.
    """
    found = windows(samples)
    best, largest = None, sum(window.high - window.low + 1 for window in found)
    total = largest
    for size in _around(samples[0][0], 2 * max((w.divisor for w in found), default=0)):
        if size in taken or total == 1:
            continue
        counts: dict[int, int] = {}
        for window in found:
            for value, number in window.values(size):
                counts[value] = counts.get(value, 0) + number
        if max(counts.values()) < largest:
            best, largest = size, max(counts.values())
        if 2 * largest <= total + 1:
            break
    return best


def _around(size: int, reach: int) -> Iterator[int]:
    """Yield sizes around one, those below first: tables of positions end."""
    yield from range(size - 1, max(size - reach, 0), -1)
    yield from range(size + 1, size + reach)
