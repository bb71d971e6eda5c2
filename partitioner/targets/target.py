"""What a target is, once it is found, and what may be asked of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from partitioner.capture.inputs import CallArguments

if TYPE_CHECKING:
    from torch import nn

__all__ = ["HuggingFaceOptions", "Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceOptions:
    """What to make of a Hugging Face model's configuration."""

    hf_class: str | None = None
    """Class of transformers; None: the configuration's ``architectures``."""
    micro_batch: int | None = None
    """Samples of one micro-batch; None: one."""
    seq_len: int | None = None
    """Tokens, or samples of sound; None: what the configuration suggests."""
    image_size: int | None = None
    """Height and width in pixels; None: the configuration's."""

    def given(self) -> list[str]:
        """Return the options that were given, as the command line spells them."""
        names = [each.name for each in fields(self)]
        given = [name for name in names if getattr(self, name) is not None]
        return [f"--{name.replace('_', '-')}" for name in given]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model that was found, with what its file says about its inputs."""

    name: str
    """The target with its attribute or class: ``model.py:build_model``."""
    model: nn.Module
    example_inputs: Any = None
    """One micro-batch as the file gives it; None: the file has none."""
    loss_fn: Any = None
    example_labels: Any = None
    """Loss and labels, if the file has both."""
    notes: tuple[str, ...] = ()
    """What was assumed in making the inputs, keywords in a dict then."""

    def arguments(self) -> dict[str, Any]:
        """Return what planning and measuring are given of the file."""
        inputs = self.example_inputs
        if self.notes:
            inputs = CallArguments(args=(), kwargs=inputs, notes=self.notes)
        return {
            "example_inputs": inputs,
            "loss_fn": self.loss_fn,
            "example_labels": self.example_labels,
        }
