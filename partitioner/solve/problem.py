"""What the solver is asked, and what it answers: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Assignment", "Checkpointing", "Problem", "Tie", "Unit", "Value"]

Checkpointing = Literal["none", "auto", "all"]


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
    """Whether the unit uses at least one trainable parameter."""
    block: int = -1
    """Activation-checkpoint unit: equal blocks are recomputed together; -1: never."""
    pinned_stage: int | None = None
    """The only stage it may be on (negative counts from the last); None: any."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A parameter that several units use: each stage with one of them holds a copy."""

    units: tuple[int, ...]
    static_bytes: int
    """Weights, gradients and optimizer states of one copy."""
    trainable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One planning problem.

    Stage time (one micro-batch): sum over its units of ``forward_s + backward_s``,
    plus ``forward_s`` again of every recomputed unit, plus ``hop_s`` of every value
    that crosses the boundary before it and of every value that crosses the boundary
    after it (hop model: a value needed k stages later crosses k boundaries).

    Stage memory: ``static_bytes`` of its units, of each tie with a unit on it (once),
    plus ``in_flight[s]`` times (``saved_bytes`` of the kept units, plus what each
    recomputed block reads from outside itself, plus twice the bytes received),
    plus the largest ``saved_bytes`` of one recomputed block, plus the bytes of one
    wire buffer each way (received and sent).

    Step time: ``sum(stage times) + (micro_batches - 1) * max(stage times)``
    (Zheng et al., Alpa, OSDI 2022, section 5.2).

    ``units`` are in a topological order of ``values`` and ``order_edges``.
    """

    units: tuple[Unit, ...]
    values: tuple[Value, ...]
    stages: int
    micro_batches: int
    in_flight: tuple[int, ...]
    """Micro-batches whose saved activations stage s holds at its peak."""
    memory_limit_bytes: int | None = None
    """Per stage; None: no limit."""
    order_edges: tuple[tuple[int, int], ...] = ()
    """Pairs (before, after) without data: the first may not be on a later stage."""
    ties: tuple[Tie, ...] = ()
    checkpointing: Checkpointing = "auto"
    block_names: tuple[str, ...] = ()
    """Name of each activation-checkpoint block, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A solved problem: where units run, what is recomputed, and how good that is."""

    stage_of: tuple[int, ...]
    """Stage of each unit."""
    recomputed: tuple[bool, ...]
    """Whether each unit is inside a checkpointed block."""
    objective_s: float
    """Step time of this assignment."""
    bound_s: float
    """No assignment has a shorter step time than this."""
    proof: str
    """Which rule gave the bound, in words."""
    solver: str
    """What found the assignment: "cbc", "highs" or "order-dp"."""
    solve_s: float
    """Wall time spent."""
    warnings: tuple[str, ...] = ()
    """What went wrong on the way (no solver, time limit), in words."""

    @property
    def gap(self) -> float:
        """Relative distance between objective and bound; 0 means proven optimal."""
        if self.objective_s <= 0:
            return 0.0
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s)
