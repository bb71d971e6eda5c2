"""What the solver is asked, and what it answers: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from partitioner.solve.parts import Constraint, Device, Tie, Unit, Value

__all__ = [
    "Assignment",
    "Checkpointing",
    "Objective",
    "Problem",
    "Schedule",
    "Transfer",
]

Checkpointing = Literal["none", "auto", "all"]
Objective = Literal["step", "bottleneck"]
Schedule = Literal["1f1b", "eager-1f1b", "dualpipev"]
Transfer = Literal["hops", "ends"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One planning problem.

    Stages are placed on ranks: one each, or under ``schedule="dualpipev"`` two: rank r
    of S holds the stages r and 2S - 1 - r.

    Stage time (one micro-batch): sum over its units of ``forward_s + backward_s``, plus
    ``forward_s`` again of every recomputed unit; or the sum of ``host_s``, with the
    forward's share again of every recomputed unit, if that is more; divided by the
    speed of its device; plus the time of communication. ``transfer="hops"``: ``hop_s``
    of every value that crosses the boundary before it and of every one after it
    (a value needed k stages later crosses k boundaries; a boundary between two stages
    of one rank is free; at a far one ``far_hop_s`` counts instead; of either the
    `paid_share`). ``transfer="ends"``: ``hop_s`` of every value that is made or read
    on the stage and also on another: it passes through memory that all devices share,
    and does not order the stages.

    Stage memory: ``static_bytes`` of its units, of each tie with a unit on it (once on
    a rank), ``engine_bytes`` (likewise), plus ``in_flight[s]`` times (``saved_bytes``
    of the kept units, plus what each recomputed block reads from outside itself (with
    ``checkpointing="all"`` a value once for all blocks of the stage), plus twice the
    bytes received, plus the bytes sent), plus the bytes of one wire buffer each way
    (`received_buffers` and sent), plus what the larger of two moments of a backward
    needs. In its tail: the largest ``transient_bytes`` of a tail unit. Before: the
    largest of ``reserved_bytes`` plus the ``transient_bytes`` of another unit, and for
    each recomputed block its ``saved_bytes`` plus the largest ``beyond_bytes`` in it;
    plus the ``passing_bytes`` of all, less the ``saved_bytes`` of the tail units. While
    the optimizer steps, ``step_bytes`` take the place of all but ``static_bytes`` and
    the wire buffers: the larger counts.

    Time and memory of a rank are the sums over its stages; of a backward's moments the
    largest of its stages counts. The objective is a weighted sum of ``max`` and ``sum``
    of the rank times, see `weights`.

    ``units`` are in a topological order of ``values`` (with "hops") and
    ``order_edges``.
    """

    units: tuple[Unit, ...]
    values: tuple[Value, ...]
    stages: int
    micro_batches: int
    in_flight: tuple[int, ...]
    """Micro-batches whose saved activations stage s holds at its peak."""
    memory_limit_bytes: int | None = None
    """Per rank; None: no limit."""
    reserved_bytes: int = 0
    """What backward holds for a moment on any rank."""
    engine_bytes: int = 0
    """Buffers of the engine's own, on any rank."""
    order_edges: tuple[tuple[int, int], ...] = ()
    """Pairs (before, after) without data: the first may not be on a later stage."""
    ties: tuple[Tie, ...] = ()
    checkpointing: Checkpointing = "auto"
    block_names: tuple[str, ...] = ()
    """Name of each activation-checkpoint block, by its number."""
    objective: Objective = "step"
    """What is minimised: the step time, or the longest time of a rank."""
    schedule: Schedule = "1f1b"
    transfer: Transfer = "hops"
    devices: tuple[Device, ...] = ()
    """One per rank; empty: all alike."""
    far: tuple[bool, ...] = ()
    """For each boundary, whether it lies between two nodes; empty: none does."""
    constraints: tuple[Constraint, ...] = ()
    cuda_graphs: bool = False
    """Stages are replayed as CUDA graphs: what those hold must fit as well."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.stages // 2 if self.schedule == "dualpipev" else self.stages

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        if self.schedule == "dualpipev":
            return min(stage, self.stages - 1 - stage)
        return stage

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        if self.schedule == "dualpipev":
            return rank, self.stages - 1 - rank
        return (rank,)

    def is_free(self, boundary: int) -> bool:
        """Whether the boundary before a stage lies between two stages of one rank."""
        return self.schedule == "dualpipev" and boundary == self.ranks

    @property
    def paid_share(self) -> float:
        """Share of a message's time that each of its two stages is charged.

        Under eager 1F1B a half: nobody waits for it but while the pipeline fills and
        drains, when it counts once; and a link that is not done with one message in
        time keeps the next.
        """
        hidden = self.schedule == "eager-1f1b" and self.transfer == "hops"
        return 0.5 if hidden else 1.0

    def is_far(self, boundary: int) -> bool:
        """Whether the boundary before a stage lies between two nodes."""
        return 0 < boundary <= len(self.far) and self.far[boundary - 1]

    @property
    def received_buffers(self) -> int:
        """Buffers of the wire that a stage has for the boundary before it.

        One for what comes; where sends do not wait, the gradient of the micro-batch
        before may still be on its way.
        """
        return 2 if self.schedule == "eager-1f1b" else 1

    @property
    def distances(self) -> tuple[bool, ...]:
        """Values of ``far`` for which a crossing has a price: near, or near and far."""
        return (False, True) if any(self.far) else (False,)

    def speed(self, stage: int) -> float:
        """Return the relative speed of the device that a stage is on."""
        return self.devices[self.rank_of(stage)].speed if self.devices else 1.0

    @property
    def limits(self) -> tuple[int | None, ...]:
        """Memory limit of each rank, in bytes."""
        shared = self.memory_limit_bytes
        if not self.devices:
            return (shared,) * self.ranks
        own = (device.memory_limit_bytes for device in self.devices)
        return tuple(shared if limit is None else limit for limit in own)

    @property
    def limited(self) -> bool:
        """Whether some rank has a memory limit."""
        return any(limit is not None for limit in self.limits)

    def with_less_memory(self, less_bytes: int) -> Problem:
        """Return the same problem with lower memory limits, where there are any.

        Args:
            less_bytes: By how much. What is left is one byte or more.
        """
        if not less_bytes:
            return self

        def lower(limit: int | None) -> int | None:
            return None if limit is None else max(1, limit - less_bytes)

        devices = tuple(
            replace(device, memory_limit_bytes=lower(device.memory_limit_bytes))
            for device in self.devices
        )
        shared = lower(self.memory_limit_bytes)
        return replace(self, memory_limit_bytes=shared, devices=devices)

    def without_limits(self) -> Problem:
        """Return the same problem with unlimited memory."""
        devices = (replace(device, memory_limit_bytes=None) for device in self.devices)
        return replace(self, memory_limit_bytes=None, devices=tuple(devices))

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the longest rank time and of the sum of the rank times.

        See `step_weights` for the step time; ``(1, 0)`` for the bottleneck.
        """
        return (1.0, 0.0) if self.objective == "bottleneck" else self.step_weights

    @property
    def step_weights(self) -> tuple[float, float]:
        """Weights (longest, sum) that make up the step time of the schedule.

        1F1B: ``(M - 1) max(t) + sum(t)`` (Zheng et al., Alpa, OSDI 2022, section 5.2).
        DualPipeV: ``M max(t) + b (S - 1) / S sum(t)`` for S ranks, where b is the share
        of the longer pass (backward, as a rule) and half the shorter in all work: in
        the fill and the drain, forwards of one chunk run beside backwards of the other.
        For equal chunks this exceeds what DeepSpeed's own instructions take, sends in
        batches included, by at most one forward.
        """
        if self.schedule != "dualpipev":
            return float(self.micro_batches - 1), 1.0
        forward_s = sum(unit.forward_s for unit in self.units)
        backward_s = sum(unit.backward_s for unit in self.units)
        work_s = forward_s + backward_s
        hidden_s = min(forward_s, backward_s) / 2
        share = (work_s - hidden_s) / work_s if work_s else 0.0
        return float(self.micro_batches), share * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A solved problem: where units run, what is recomputed, and how good that is."""

    stage_of: tuple[int, ...]
    """Stage of each unit."""
    recomputed: tuple[bool, ...]
    """Whether each unit is inside a checkpointed block."""
    objective_s: float
    """Step time of this assignment (or, if that is minimised, its bottleneck)."""
    bound_s: float
    """No assignment has a smaller objective than this."""
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
