"""How far the cut model is from the original: outputs, gradients, buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partitioner.verify.run import Outcome

__all__ = ["ModeErrors", "Verification", "compare", "error", "least_scale"]

GRADIENT_FLOOR = 1e-3
"""A gradient is compared relative to its own largest element, or to this share of the
model's largest gradient if that is more."""

MOVED = 4
"""How much of what rounding is seen to move a gradient by may explain a difference:
two runs each stray from the true value, and what was seen is a sample."""
MOST_MOVED = 16
"""Roundings of the model's largest gradient that rounding may explain at most: what
moves by more has met a branch (a routed token), which says nothing of the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeErrors:
    """Errors in one mode, relative to the largest element of what is compared."""

    max_output_error: float
    max_gradient_error: float
    max_buffer_error: float
    per_parameter: Mapping[str, float]

    @property
    def worst(self) -> float:
        """The largest of all errors."""
        return max(
            self.max_output_error, self.max_gradient_error, self.max_buffer_error
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The cut model compared with the original, in train and in eval mode."""

    modes: Mapping[str, ModeErrors]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether every error is within the tolerance."""
        return all(mode.worst <= self.tolerance for mode in self.modes.values())

    @property
    def max_output_error(self) -> float:
        """Largest error of any output, in either mode."""
        return max(mode.max_output_error for mode in self.modes.values())

    @property
    def max_gradient_error(self) -> float:
        """Largest error of any parameter's gradient, in either mode."""
        return max(mode.max_gradient_error for mode in self.modes.values())

    @property
    def max_buffer_error(self) -> float:
        """Largest error of any buffer after the run, in either mode."""
        return max(mode.max_buffer_error for mode in self.modes.values())

    @property
    def per_parameter(self) -> Mapping[str, float]:
        """Largest gradient error of each parameter, in either mode."""
        worst: dict[str, float] = {}
        for mode in self.modes.values():
            for name, error in mode.per_parameter.items():
                worst[name] = max(error, worst.get(name, 0.0))
        return worst

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports (``schema_version`` 1)."""
        return {
            "schema_version": 1,
            "kind": "fx-partitioner verification",
            "ok": self.ok,
            "tolerance": self.tolerance,
            "modes": {
                name: {
                    "max_output_error": mode.max_output_error,
                    "max_gradient_error": mode.max_gradient_error,
                    "max_buffer_error": mode.max_buffer_error,
                }
                for name, mode in self.modes.items()
            },
            "per_parameter": dict(self.per_parameter),
        }

    def __str__(self) -> str:
        """Return one line for each mode."""
        lines = [
            f"{name}: outputs {mode.max_output_error:.2e}, gradients "
            f"{mode.max_gradient_error:.2e}, buffers {mode.max_buffer_error:.2e}"
            for name, mode in self.modes.items()
        ]
        verdict = "equal" if self.ok else "DIFFERENT"
        return "\n".join([*lines, f"{verdict} (tolerance {self.tolerance:.0e})"])


def compare(
    original: Outcome, cut: Outcome, nudged: Sequence[Outcome] = ()
) -> ModeErrors:
    """Return the relative errors of ``cut`` against ``original``.

    Some gradients are zero but for rounding (a key's bias under softmax, a bias before
    batch statistics): two runs that round in another order share no digit of them.
    What they are known to is not their size, which small gradients have as well, but
    how far they move when every weight and input moves by one rounding.

    Args:
        original: The model as it is.
        cut: Its pipeline.
        nudged: The model with its weights and inputs moved by one rounding. How far a
            gradient moves there is no error.
    """
    outputs = _paired_outputs(original, cut)
    largest = _largest_of(original.gradients.values())
    floor = least_scale(original.gradients.values())
    gradients = {
        name: _gradient_error(
            gradient,
            cut.gradients[name],
            floor=floor,
            spread=_spread(gradient, [run.gradients[name] for run in nudged], largest),
        )
        for name, gradient in original.gradients.items()
    }
    buffers = [error(b, cut.buffers[name]) for name, b in original.buffers.items()]
    return ModeErrors(
        max_output_error=max(outputs, default=0.0),
        max_gradient_error=max(gradients.values(), default=0.0),
        max_buffer_error=max(buffers, default=0.0),
        per_parameter=gradients,
    )


def _paired_outputs(original: Outcome, cut: Outcome) -> list[float]:
    if len(original.outputs) != len(cut.outputs):
        return [float("inf")]
    pairs = zip(original.outputs, cut.outputs, strict=True)
    return [error(a, b) for a, b in pairs]


def least_scale(gradients: Iterable[Tensor | None]) -> float:
    """Return the least scale that an error of one of these gradients is relative to."""
    return GRADIENT_FLOOR * _largest_of(gradients)


def _largest_of(gradients: Iterable[Tensor | None]) -> float:
    present = [gradient for gradient in gradients if gradient is not None]
    return max(map(_largest, present), default=0.0)


def _spread(
    gradient: Tensor | None, others: Sequence[Tensor | None], largest: float
) -> float:
    """Return what rounding explains of a gradient's error."""
    if gradient is None:
        return 0.0
    moved = [
        _difference(gradient, other)
        for other in others
        if other is not None and other.shape == gradient.shape
    ]
    most = MOST_MOVED * torch.finfo(gradient.dtype).eps * largest
    return MOVED * min(max(moved, default=0.0), most)


def _gradient_error(
    a: Tensor | None, b: Tensor | None, *, floor: float, spread: float
) -> float:
    """A missing gradient counts as zero: the engine's optimizer sees zeros too."""
    if a is None and b is None:
        return 0.0
    if a is None or b is None:
        present = b if a is None else a
        assert present is not None
        return error(torch.zeros_like(present), present, floor or 1.0)
    return error(a, b, floor, spread)


def error(
    reference: Tensor, value: Tensor, floor: float = 0.0, spread: float = 0.0
) -> float:
    """Return the largest difference relative to the reference's largest element.

    Args:
        reference: Any shape and dtype.
        value: What is compared; another shape or dtype is an infinite error, and so
            is a non-finite element where the reference has none.
        floor: Least scale to be relative to.
        spread: Difference that is none.
    """
    if reference.shape != value.shape or reference.dtype != value.dtype:
        return float("inf")
    if reference.numel() == 0 or torch.equal(reference, value):
        return 0.0
    difference = _difference(reference, value)
    scale = max(_largest(reference), floor)
    if math.isnan(difference) or scale == 0.0:
        return float("inf")
    return max(difference - spread, 0.0) / scale


def _difference(reference: Tensor, value: Tensor) -> float:
    """Return the largest difference; nan where only one is."""
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = reference.to(wide), value.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, torch.zeros_like(a), a - b).abs().max().item()


def _largest(tensor: Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    finite = tensor.to(wide).abs()
    finite = finite[finite.isfinite()]
    return finite.max().item() if finite.numel() else 0.0
