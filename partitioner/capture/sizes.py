"""Integers that follow the inputs' sizes: free sizes, and expressions of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partitioner.capture.divisions import division

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from partitioner.graph import InputSpec

__all__ = [
    "FreeSize",
    "SizeExpr",
    "as_recorded",
    "candidates",
    "fit",
    "refit",
    "size_notes",
    "split",
]

SMALLEST_HALVED = 6
MAX_FREE_SIZES = 5
"""Sizes that are tried; an image model has batch, channels, height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSize:
    """One size of the inputs that may vary, and every dimension that follows it."""

    dims: tuple[tuple[int, int], ...]
    """(input, dimension) pairs; the first is where the size is read at run time."""
    value: int
    """Size in the example."""
    other: int
    """Size in the second recording."""
    larger: int
    """Size in the recording that checks the expressions."""
    fallback: int | None = None
    """Another second size, for models that take no odd one or no single sample."""

    @property
    def unround(self) -> int:
        """A larger size that is even, and hardly a constant of the model's own."""
        return self.larger - 2 if self.larger == 2 * self.value else self.larger

    def describe(self, inputs: Sequence[InputSpec]) -> str:
        """Return ``dimension 1 of input_ids, attention_mask (16)``."""
        names = ", ".join(inputs[index].name for index, _ in self.dims)
        return f"dimension {self.dims[0][1]} of {names} ({self.value})"


@dataclass(frozen=True, slots=True)
class SizeExpr:
    """``(offset + sum(coefficient * product(free sizes))) // divisor``."""

    terms: tuple[tuple[int, tuple[int, ...]], ...]
    """(coefficient, numbers of the free sizes that are multiplied)."""
    offset: int = 0
    divisor: int = 1

    def evaluate(self, sizes: Sequence[int]) -> int:
        """Return the integer at the given free sizes."""
        total = self.offset
        for coefficient, factors in self.terms:
            total += coefficient * math.prod(sizes[factor] for factor in factors)
        return total // self.divisor


def candidates(inputs: Sequence[InputSpec]) -> list[FreeSize]:
    """Return the sizes that may be free: the batch first, then equal sizes together.

    Dimension 0 of every input that has the first input's batch size is the batch (a
    number as the first input has none);
    other dimensions of one size are taken to follow each other.
    """
    batch = next((spec.shape[0] for spec in inputs if spec.shape), None)
    groups: dict[tuple[bool, int], list[tuple[int, int]]] = {}
    for index, spec in enumerate(inputs):
        for dim, size in enumerate(spec.shape):
            is_batch = dim == 0 and size == batch
            groups.setdefault((is_batch, size), []).append((index, dim))
    ordered = sorted(groups.items(), key=lambda item: not item[0][0])
    return [
        _free_size(tuple(dims), size, is_batch=is_batch)
        for (is_batch, size), dims in ordered[:MAX_FREE_SIZES]
    ]


def split(size: FreeSize, inputs: Sequence[InputSpec]) -> list[FreeSize]:
    """Take a size apart whose dimensions may be equal by accident.

    Into inputs of different ranks first (a text and an image), then into different
    dimensions (a length and a width), then into single inputs.

    Args:
        size: Whose dimensions do not change together.
        inputs: The inputs.

    Returns:
        Two parts or more; none if it has one dimension only.
    """
    batch = next((index for index, spec in enumerate(inputs) if spec.shape), None)
    ways = (
        [len(inputs[index].shape) for index, _ in size.dims],
        [dim for _, dim in size.dims],
        [index for index, _ in size.dims],
    )
    for way in ways:
        parts: dict[int, list[tuple[int, int]]] = {}
        for key, place in zip(way, size.dims, strict=True):
            parts.setdefault(key, []).append(place)
        if len(parts) > 1:
            return [
                _free_size(tuple(dims), size.value, is_batch=(batch, 0) in dims)
                for dims in parts.values()
            ]
    return []


def _free_size(
    dims: tuple[tuple[int, int], ...], size: int, *, is_batch: bool
) -> FreeSize:
    """Choose other sizes: a single sample; about half of a length, and the double.

    One, because code likes to ask whether there is one, mostly to no effect.
    Half, because a model that accepts a length accepts shorter ones (tables of
    positions end). Odd where it can be, since rounding up and down differ there. The
    double shows lengths that stop following: ``min(length, 512)``.
    """
    if is_batch and size > 1:
        return FreeSize(
            dims=dims, value=size, other=1, larger=size + 2, fallback=size + 1
        )
    if size < SMALLEST_HALVED:
        return FreeSize(dims=dims, value=size, other=size + 1, larger=size + 2)
    half = size // 2
    odd = half if half % 2 else half - 1
    even = None if size % 2 or odd == half else half
    return FreeSize(dims=dims, value=size, other=odd, larger=2 * size, fallback=even)


def fit(base: int, others: Sequence[int], sizes: Sequence[FreeSize]) -> SizeExpr | None:
    """Return an expression that gives ``base`` and, per changed size, ``others``.

    Args:
        base: The integer at the example's sizes.
        others: ``others[k]`` is the integer when only free size k has its other value.
        sizes: The free sizes.

    Returns:
        A product of sizes, a sum with constant coefficients, or a floor division of
        one size; None if none of these fits.
    """
    moved = [k for k, other in enumerate(others) if other != base]
    return (
        _fit_product(base, others, sizes, moved)
        or _fit_sum(base, others, sizes, moved)
        or _fit_division(base, others, sizes, moved)
    )


def _fit_product(
    base: int, others: Sequence[int], sizes: Sequence[FreeSize], moved: list[int]
) -> SizeExpr | None:
    product = math.prod(sizes[k].value for k in moved)
    if product == 0 or base % product:
        return None
    for k in moved:
        if others[k] * sizes[k].value != base * sizes[k].other:
            return None
    return SizeExpr(terms=((base // product, tuple(moved)),))


def _fit_sum(
    base: int, others: Sequence[int], sizes: Sequence[FreeSize], moved: list[int]
) -> SizeExpr | None:
    terms: list[tuple[int, tuple[int, ...]]] = []
    offset = base
    for k in moved:
        change, step = others[k] - base, sizes[k].other - sizes[k].value
        if change % step:
            return None
        coefficient = change // step
        terms.append((coefficient, (k,)))
        offset -= coefficient * sizes[k].value
    return SizeExpr(terms=tuple(terms), offset=offset)


def _fit_division(
    base: int, others: Sequence[int], sizes: Sequence[FreeSize], moved: list[int]
) -> SizeExpr | None:
    """Strided layers: (size + offset) // stride, with a usual offset if one fits."""
    if len(moved) != 1:
        return None
    (k,) = moved
    found = division(((sizes[k].value, base), (sizes[k].other, others[k])))
    return _divided(k, found)


def _divided(number: int, found: tuple[int, int] | None) -> SizeExpr | None:
    if found is None:
        return None
    divisor, offset = found
    return SizeExpr(terms=((1, (number,)),), offset=offset, divisor=divisor)


def refit(
    expression: Any,
    seen: Sequence[Sequence[int]],
    sizes: Sequence[int],
    found: Any,
) -> SizeExpr | None:
    """Return a division that agrees with one, and with what was found at new sizes.

    Args:
        expression: Agrees with ``seen``.
        seen: Combinations of the free sizes.
        sizes: Another one.
        found: The integer there.

    Returns:
        None if there is none, or the expression is no division.
    """
    division_of_one = isinstance(expression, SizeExpr) and expression.divisor != 1
    if not seen or not division_of_one or type(found) is not int:
        return None
    number = expression.terms[0][1][0]
    samples = {values[number]: expression.evaluate(values) for values in seen}
    if samples.setdefault(sizes[number], found) != found:
        return None  # it follows another size as well
    return _divided(number, division(tuple(samples.items())))


def size_notes(
    inputs: Sequence[InputSpec],
    sizes: Sequence[FreeSize],
    seen: Sequence[Sequence[int]],
) -> list[str]:
    """Name the sizes that were seen: what follows from others nobody looked at.

    Args:
        inputs: The inputs.
        sizes: The free sizes.
        seen: Every combination of the free sizes that was recorded.
    """
    notes = []
    for number, size in enumerate(sizes):
        *values, last = dict.fromkeys(combination[number] for combination in seen)
        names = size.describe(inputs).rpartition(" (")[0]
        notes.append(
            f"sizes: {names} was recorded at {', '.join(map(str, values))} and {last}; "
            "Python's branches on it are guards, and integers are taken to follow it "
            "as they did there: plan.verify(inputs=…) at the sizes you train with"
        )
    return notes


def as_recorded(
    inputs: tuple[InputSpec, ...],
    sizes: Sequence[FreeSize],
    dtype: torch.dtype | None,
) -> tuple[InputSpec, ...]:
    """Return the inputs with their free sizes, and in the dtype of the recording."""
    symbols = [[-1] * len(spec.shape) for spec in inputs]
    for number, size in enumerate(sizes):
        for index, dim in size.dims:
            symbols[index][dim] = number
    return tuple(
        replace(
            spec,
            symbols=tuple(symbols[index]),
            dtype=dtype if dtype and spec.dtype.is_floating_point else spec.dtype,
        )
        for index, spec in enumerate(inputs)
    )
