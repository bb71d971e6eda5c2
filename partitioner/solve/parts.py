"""What a problem is made of: units, values between them, ties, devices, wishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Constraint", "Device", "Tie", "Unit", "Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The smallest thing that is placed: one or more graph nodes that stay together."""

    name: str
    """Shown in reports and errors: the stable id of its first node."""
    forward_s: float
    """Forward time of one micro-batch."""
    backward_s: float
    """Backward time of one micro-batch, recomputation not included."""
    saved_bytes: int
    """Kept for backward by one micro-batch in flight, if not recomputed."""
    static_bytes: int
    """Weights, gradients and optimizer states that this unit alone uses."""
    trainable: bool
    """Whether the unit uses a trainable parameter that no unit before it uses."""
    block: int = -1
    """Activation-checkpoint unit: equal blocks are recomputed together; -1: never."""
    step_bytes: int = 0
    """What the optimizer's step needs on top of ``static_bytes``."""
    transient_bytes: int = 0
    """What its backward holds; before the tail beyond the ``reserved_bytes`` of all."""
    beyond_bytes: int = 0
    """What its backward holds beyond what the rest of its block has freed by then."""
    tail: bool = False
    """It runs after the last block; where a block runs backwards, its part is gone."""
    passing_bytes: int = 0
    """What takes the place of what its backward frees: gradients of one micro-batch."""
    pinned_stage: int | None = None
    """The only stage it may be on (negative counts from the last); None: any."""
    gradient_bytes: int = 0
    """Gradients that replicas of the pipeline sum after a step."""
    frozen: bool = False
    """Whether the unit uses a frozen parameter that no unit before it uses."""
    host_s: float = 0.0
    """What the host needs to start its forward and backward, while devices compute; 0
    where its device has nothing to do."""

    @property
    def device_s(self) -> float:
        """What its device needs for forward and backward."""
        return self.forward_s + self.backward_s

    def needs_s(self, *, again: bool) -> tuple[float, float]:
        """Return what its device and its host need, with its forward again or not."""
        if not again or not self.device_s:
            return self.device_s, self.host_s
        times = 1 + self.forward_s / self.device_s
        return times * self.device_s, times * self.host_s

    @property
    def weighted(self) -> bool:
        """Whether the unit has a parameter of its own: every stage needs one that has.

        A stage without would be legal; only what is worth a stage is looked for.
        """
        return self.trainable or self.frozen

    @property
    def freed_bytes(self) -> int:
        """Room that its backward has made by the time a block runs backwards."""
        return self.saved_bytes * self.tail - self.passing_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor made by one unit and read by others: what a cut may have to send."""

    producer: int
    """Index of the unit that makes it."""
    consumers: tuple[int, ...]
    """Indices of the units that read it, without the producer."""
    hop_s: float
    """Time to cross one stage boundary, gradient included, by one micro-batch."""
    wire_bytes: int
    """Bytes that cross one boundary forwards, by one micro-batch."""
    gradient_hop_s: float = 0.0
    """Part of ``hop_s`` that the gradient takes."""
    far_hop_s: float | None = None
    """Time to cross a far boundary; None: ``hop_s``."""
    far_gradient_hop_s: float | None = None
    """Part of ``far_hop_s`` that the gradient takes; None: ``gradient_hop_s``."""

    def crossing_s(self, *, far: bool) -> float:
        """Return the time to cross a boundary, gradient included."""
        return self.far_hop_s if far and self.far_hop_s is not None else self.hop_s

    def gradient_s(self, *, far: bool) -> float:
        """Return the part of it that the gradient takes."""
        own = self.far_gradient_hop_s if far else None
        return self.gradient_hop_s if own is None else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A parameter that several units use: each stage with one of them holds a copy."""

    units: tuple[int, ...]
    static_bytes: int
    """Weights, gradients and optimizer states of one copy."""
    step_bytes: int = 0
    """What the optimizer's step needs on top for one copy."""
    gradient_bytes: int = 0
    """Gradients of one copy that replicas of the pipeline sum after a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one rank runs on, relative to the device that the units are priced for."""

    speed: float = 1.0
    """Work is done this many times as fast."""
    memory_limit_bytes: int | None = None
    """Its memory; None: the problem's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A wish of the user, or a need of the model, with the words to name it."""

    kind: Literal["together", "pin", "equal"]
    """Share a stage; be on ``stage``; or: every stage holds equally many parts."""
    words: str
    """How the user put it, or what needs it, for errors."""
    parts: tuple[tuple[int, ...], ...]
    """Units of each part; the units of one part share a stage."""
    stage: int = 0
    """For "pin": the stage (negative counts from the last)."""
    wished: bool = True
    """Whether it is the user's, who can drop it."""
