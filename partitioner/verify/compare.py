"""How far the cut model is from the original: outputs, gradients, buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.verify.run import Outcome

__all__ = ["ModeErrors", "Verification", "compare", "error", "least_scale"]

GRADIENT_FLOOR = 1e-3
"""A gradient is compared relative to its own largest element, or to this share of the
model's largest gradient if that is more: some gradients are zero but for rounding
(a key's bias under softmax). One rounding counts where it is more than that share."""

ROUNDINGS = 8 * torch.finfo(torch.float32).eps
"""A difference of a few roundings of the model's largest gradient is relative to that:
it is what cancelling leaves (a bias before batch statistics), and a tolerance of 1e-5 of
the floor would be less than one rounding."""


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
        """Return plain data for reports."""
        return {
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


def compare(original: Outcome, cut: Outcome) -> ModeErrors:
    """Return the relative errors of ``cut`` against ``original``."""
    outputs = _paired_outputs(original, cut)
    floor = least_scale(original.gradients.values())
    largest = _largest_of(original.gradients.values())
    gradients = {
        name: _gradient_error(gradient, cut.gradients[name], floor, largest)
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
    present = [gradient for gradient in gradients if gradient is not None]
    rounding = max((torch.finfo(g.dtype).eps for g in present), default=0.0)
    return max(GRADIENT_FLOOR, rounding) * _largest_of(present)


def _largest_of(gradients: Iterable[Tensor | None]) -> float:
    present = [gradient for gradient in gradients if gradient is not None]
    return max(map(_largest, present), default=0.0)


def _gradient_error(
    a: Tensor | None, b: Tensor | None, floor: float, largest: float
) -> float:
    """A missing gradient counts as zero: the engine's optimizer sees zeros too."""
    if a is None and b is None:
        return 0.0
    if a is None or b is None:
        present = b if a is None else a
        assert present is not None
        return error(torch.zeros_like(present), present, floor or 1.0)
    of_largest = error(a, b, largest)
    return of_largest if of_largest <= ROUNDINGS else error(a, b, floor)


def error(reference: Tensor, value: Tensor, floor: float = 0.0) -> float:
    """Return the largest difference relative to the reference's largest element.

    Args:
        reference: Any shape and dtype.
        value: What is compared; another shape or dtype is an infinite error, and so
            is a non-finite element where the reference has none.
        floor: Least scale to be relative to.
    """
    if reference.shape != value.shape or reference.dtype != value.dtype:
        return float("inf")
    if reference.numel() == 0 or torch.equal(reference, value):
        return 0.0
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = reference.to(wide), value.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), a - b).abs().max().item()
    scale = max(_largest(reference), floor)
    if math.isnan(difference) or scale == 0.0:
        return float("inf")
    return difference / scale


def _largest(tensor: Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    finite = tensor.to(wide).abs()
    finite = finite[finite.isfinite()]
    return finite.max().item() if finite.numel() else 0.0
