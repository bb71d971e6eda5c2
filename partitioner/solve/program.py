"""Writes the assignment of groups to stages as a mixed-integer program (PuLP)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pulp

from partitioner.solve.score import RECEIVED_COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partitioner.solve.groups import Groups
    from partitioner.solve.intervals import BlockRead
    from partitioner.solve.windows import StageWindows

__all__ = ["Program"]

Term = Any
"""A number, a PuLP variable or a PuLP expression (PuLP has no types)."""


class Program:
    """Least step time over stages in prefix form.

    ``y[g, s] = 1`` says that group g is on stage s or earlier; only groups whose
    windows leave a choice have variables. ``cut[v, s] >= y[producer, s] -
    y[reader, s]`` says that value v crosses the boundary after stage s. Seconds are
    divided by ``scale_s`` and bytes by the memory limit.

    Args:
        groups: What is to be placed.
        windows: Stages left to each group.
        reads: What activation-checkpoint blocks read.
        target_s: Step times above this are of no interest; None: any will do.
        longest_s: Stage times above this are of no interest.
        memory: Whether to bound the memory; without, the program is a relaxation.
    """

    def __init__(
        self,
        groups: Groups,
        windows: StageWindows,
        reads: Sequence[BlockRead],
        *,
        target_s: float | None,
        longest_s: float,
        memory: bool,
    ) -> None:
        self.groups = groups
        self.earliest = windows.earliest.tolist()
        self.latest = windows.latest.tolist()
        self.reads = reads
        self.stages = groups.problem.stages
        total_s = float(groups.work_s.sum())
        self.scale_s = total_s / self.stages or 1.0
        self.model = pulp.LpProblem("stages", pulp.LpMinimize)
        self.rows = 0
        self.free: dict[tuple[int, int], Any] = {}
        self._prefixes()
        self.cuts = [self._cut(s) for s in range(self.stages - 1)]
        self._objective(target_s, longest_s)
        self._trainable()
        if memory and groups.problem.memory_limit_bytes is not None:
            self._memory(groups.problem.memory_limit_bytes)

    def stage_of_groups(self, values: Mapping[str, float]) -> list[int]:
        """Read the stage of each group from the values of the variables."""
        stage_of = []
        for group in range(len(self.groups)):
            stage = self.earliest[group]
            while stage < self.latest[group]:
                if values.get(self.free[group, stage].name, 0.0) > 0.5:  # noqa: PLR2004
                    break
                stage += 1
            stage_of.append(stage)
        return stage_of

    def objective_s(self, values: Mapping[str, float]) -> float:
        """Return the step time that a solution claims, in seconds."""
        terms = self.model.objective.items()
        scaled = sum(factor * values.get(v.name, 0.0) for v, factor in terms)
        return float(scaled) * self.scale_s

    # ------------------------------------------------------------ variables

    def _prefixes(self) -> None:
        for group, (first, last) in enumerate(
            zip(self.earliest, self.latest, strict=True)
        ):
            for stage in range(first, last):
                self.free[group, stage] = pulp.LpVariable(
                    f"y{group}_{stage}", cat=pulp.LpBinary
                )
                if stage > first:
                    self._add(
                        self.free[group, stage - 1] - self.free[group, stage] <= 0
                    )
        for before, after in self.groups.edges:
            for stage in range(
                max(self.earliest[after], self.earliest[before]),
                min(self.latest[before], self.latest[after]),
            ):
                self._add(self.free[after, stage] - self.free[before, stage] <= 0)

    def _upto(self, group: int, stage: int) -> Term:
        """Return 1 if the group is on this stage or earlier, 0 if not, or y."""
        if stage < self.earliest[group]:
            return 0
        if stage >= self.latest[group]:
            return 1
        return self.free[group, stage]

    def _on(self, group: int, stage: int) -> Term:
        """Return 1 if the group is on this stage, 0 if not, or an expression."""
        return self._upto(group, stage) - self._upto(group, stage - 1)

    def _cut(self, stage: int) -> list[Term]:
        """Return, for each value, whether it crosses the boundary after a stage."""
        return [
            self._crosses(f"c{index}_{stage}", value.producer, value.consumers, stage)
            for index, value in enumerate(self.groups.values)
        ]

    def _crosses(
        self, name: str, producer: int, readers: Iterable[int], stage: int
    ) -> Term:
        made = self._upto(producer, stage)
        if _is_zero(made):
            return 0
        read = [self._upto(reader, stage) for reader in readers]
        if any(_is_zero(term) for term in read):
            return made
        late = [term for term in read if not isinstance(term, int)]
        if not late:
            return 0
        if len(late) == 1 and isinstance(made, int):
            return made - late[0]
        crossing = pulp.LpVariable(name, 0, 1)
        for term in late:
            self._add(crossing - made + term >= 0)
        return crossing

    # ------------------------------------------------------------ rows

    def _add(self, row: Any) -> None:
        self.rows += 1
        self.model.addConstraint(row, f"r{self.rows}")

    def _equal(self, name: str, terms: Iterable[tuple[Term, float]]) -> Any:
        """Return a new variable that equals a weighted sum."""
        variable = pulp.LpVariable(name, 0)
        self._add(_weighted([*terms, (variable, -1.0)]) == 0)
        return variable

    def _objective(self, target_s: float | None, longest_s: float) -> None:
        scale = 1.0 / self.scale_s
        work = self.groups.work_s.tolist()
        done = [
            self._equal(
                f"w{s}",
                ((self._upto(g, s), scale * work[g]) for g in range(len(work))),
            )
            for s in range(self.stages)
        ]
        hops = [
            self._equal(
                f"h{s}",
                (
                    (term, scale * value.hop_s)
                    for term, value in zip(cut, self.groups.values, strict=True)
                ),
            )
            for s, cut in enumerate(self.cuts)
        ]
        cap = None if math.isinf(longest_s) else longest_s * scale * (1 + 1e-9)
        longest = pulp.LpVariable("longest", 0, cap)
        for s in range(self.stages):
            terms = [(done[s], 1.0), (longest, -1.0)]
            terms += [(done[s - 1], -1.0), (hops[s - 1], 1.0)] if s else []
            terms += [(hops[s], 1.0)] if s < self.stages - 1 else []
            self._add(_weighted(terms) <= 0)
        others = self.groups.problem.micro_batches - 1
        step = _weighted(
            [(longest, others), (done[-1], 1.0), *((hop, 2.0) for hop in hops)]
        )
        self.model.setObjective(step)
        if target_s is not None:
            self._add(step <= target_s * scale)

    def _trainable(self) -> None:
        trained = [g for g, flag in enumerate(self.groups.trainable) if flag]
        for stage in range(self.stages):
            here = [g for g in trained if self.earliest[g] <= stage <= self.latest[g]]
            if any(self.earliest[g] == self.latest[g] for g in here):
                continue
            self._add(_weighted((self._on(g, stage), 1.0) for g in here) >= 1)

    def _memory(self, limit: int) -> None:
        """Bound the memory of each stage.

        Exact if recomputation is not a choice; with ``checkpointing="auto"``, it is
        exact for nothing recomputed.
        """
        problem, scale = self.groups.problem, 1.0 / max(1, limit)
        everything = problem.checkpointing == "all"
        static, saved = [], []
        for members in self.groups.members:
            units = [problem.units[u] for u in members]
            static.append(sum(unit.static_bytes for unit in units))
            saved.append(
                sum(u.saved_bytes for u in units if not everything or u.block < 0)
            )
        for stage in range(self.stages):
            in_flight = problem.in_flight[stage]
            terms = [
                (self._on(g, stage), (static[g] + in_flight * saved[g]) * scale)
                for g in range(len(self.groups))
                if self.earliest[g] <= stage <= self.latest[g]
            ]
            terms += self._wires(stage, in_flight, scale)
            terms += self._ties(stage, scale)
            if everything:
                terms += self._recomputed(stage, in_flight, scale)
            self._add(_weighted(terms) <= limit * scale)

    def _wires(
        self, stage: int, in_flight: int, scale: float
    ) -> list[tuple[Term, float]]:
        terms: list[tuple[Term, float]] = []
        for index, value in enumerate(self.groups.values):
            wire = value.wire_bytes * scale
            if stage:
                copies = 1 + RECEIVED_COPIES * in_flight
                terms.append((self.cuts[stage - 1][index], copies * wire))
            if stage < self.stages - 1:
                terms.append((self.cuts[stage][index], wire))
        return terms

    def _ties(self, stage: int, scale: float) -> list[tuple[Term, float]]:
        terms: list[tuple[Term, float]] = []
        for index, tie in enumerate(self.groups.problem.ties):
            users = sorted({self.groups.group_of[unit] for unit in tie.units})
            on = [self._on(group, stage) for group in users]
            held = self._any(f"t{index}_{stage}", on)
            terms.append((held, tie.static_bytes * scale))
        return terms

    def _recomputed(
        self, stage: int, in_flight: int, scale: float
    ) -> list[tuple[Term, float]]:
        """Return what recomputed blocks keep, and the largest while it runs."""
        groups, units = self.groups, self.groups.problem.units
        terms: list[tuple[Term, float]] = []
        for index, read in enumerate(self.reads):
            readers = {groups.group_of[unit] for unit in read.readers}
            made: Term = 0
            if read.inside:
                producer = groups.group_of[read.producer]
                readers.discard(producer)
                made = self._on(producer, stage)
            on = [self._on(reader, stage) - made for reader in sorted(readers)]
            keeps = self._any(f"i{index}_{stage}", on)
            terms.append((keeps, in_flight * read.wire_bytes * scale))
        parts: dict[int, list[tuple[Term, float]]] = {}
        for unit, group in zip(units, groups.group_of, strict=True):
            if unit.block >= 0 and unit.saved_bytes:
                part = parts.setdefault(unit.block, [])
                part.append((self._on(group, stage), unit.saved_bytes * scale))
        peak = pulp.LpVariable(f"p{stage}", 0)
        for part in parts.values():
            self._add(_weighted([*part, (peak, -1.0)]) <= 0)
        return [*terms, (peak, 1.0)]

    def _any(self, name: str, flags: Sequence[Term]) -> Term:
        """Return 1 if one of some expressions is 1, 0 if all are 0, or a variable."""
        if any(isinstance(flag, int) and flag > 0 for flag in flags):
            return 1
        open_flags = [flag for flag in flags if not isinstance(flag, int)]
        if not open_flags:
            return 0
        found = pulp.LpVariable(name, 0, 1)
        for flag in open_flags:
            self._add(found - flag >= 0)
        return found


def _is_zero(term: Term) -> bool:
    return isinstance(term, int) and term == 0


def _weighted(terms: Iterable[tuple[Term, float]]) -> Any:
    """Return the sum of (term, factor) pairs, in time linear in their number."""
    total = pulp.LpAffineExpression()
    for term, factor in terms:
        if isinstance(term, pulp.LpVariable):
            total.addterm(term, factor)
        elif isinstance(term, int | float):
            total.constant += term * factor
        else:
            for variable, inner in term.items():
                total.addterm(variable, inner * factor)
            total.constant += term.constant * factor
    return total
