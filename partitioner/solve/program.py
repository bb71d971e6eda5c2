"""Writes the assignment of groups to stages as a mixed-integer program (PuLP)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pulp

from partitioner.solve.linear import Rows, Term, is_zero, weighted
from partitioner.solve.program_memory import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partitioner.solve.groups import Groups
    from partitioner.solve.reads import BlockRead
    from partitioner.solve.windows import StageWindows

__all__ = ["Program"]

SLACK = 1e-9
"""Relative rounding that the cap on the stage time is forgiven."""


class Program:
    """Least objective over stages in prefix form.

    ``y[g, s] = 1`` says that group g is on stage s or earlier; only groups whose
    windows leave a choice have variables. ``cut[v, s] >= y[producer, s] -
    y[reader, s]`` says that value v crosses the boundary after stage s; where values
    pass through shared memory, ``end[v, s] >= |on[producer, s] - on[reader, s]|`` says
    that stage s writes or reads v. Seconds are divided by ``scale_s`` and bytes by the
    memory limit.

    Args:
        groups: What is to be placed.
        windows: Stages left to each group.
        reads: What activation-checkpoint blocks read.
        target_s: Objectives above this are of no interest; None: any will do.
        longest_s: Rank times above this are of no interest.
    """

    def __init__(
        self,
        groups: Groups,
        windows: StageWindows,
        reads: Sequence[BlockRead],
        *,
        target_s: float | None,
        longest_s: float,
    ) -> None:
        self.groups = groups
        self.earliest = windows.earliest.tolist()
        self.latest = windows.latest.tolist()
        self.reads = reads
        self.stages = groups.problem.stages
        self.scale_s = float(groups.work_s.sum()) / groups.problem.ranks or 1.0
        self.model = pulp.LpProblem("stages", pulp.LpMinimize)
        self.rows = Rows(self.model)
        self.free: dict[tuple[int, int], Any] = {}
        self._on: dict[tuple[int, int], Term] = {}
        self._prefixes()
        self.cuts = [self._cut(s) for s in range(self.stages - 1)]
        again: list[Term] = [0] * self.stages
        if groups.problem.limited:
            again = MemoryRows(self).add()
        self._objective(again, target_s, longest_s)
        self._weights()
        self._quotas()

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
        """Return the objective that a solution claims, in seconds."""
        terms = self.model.objective.items()
        scaled = sum(factor * values.get(v.name, 0.0) for v, factor in terms)
        return float(scaled) * self.scale_s

    # ------------------------------------------------------------ terms

    def upto(self, group: int, stage: int) -> Term:
        """Return 1 if the group is on this stage or earlier, 0 if not, or y."""
        if stage < self.earliest[group]:
            return 0
        if stage >= self.latest[group]:
            return 1
        return self.free[group, stage]

    def on(self, group: int, stage: int) -> Term:
        """Return 1 if the group is on this stage, 0 if not, or an expression."""
        key = group, stage
        if key not in self._on:
            self._on[key] = self.upto(group, stage) - self.upto(group, stage - 1)
        return self._on[key]

    def any_of(self, name: str, flags: Sequence[Term]) -> Term:
        """Return 1 if one of some terms is 1, 0 if all are 0, or a variable."""
        if any(isinstance(flag, int) and flag > 0 for flag in flags):
            return 1
        undecided = [flag for flag in flags if not isinstance(flag, int)]
        if not undecided:
            return 0
        found = pulp.LpVariable(name, 0, 1)
        for flag in undecided:
            self.rows.add([(found, 1.0), (flag, -1.0)], ">=", 0.0)
        return found

    # ------------------------------------------------------------ rows

    def _prefixes(self) -> None:
        """Add y, which only grows with the stage and shrinks along the edges."""
        for group, (first, last) in enumerate(
            zip(self.earliest, self.latest, strict=True)
        ):
            for stage in range(first, last):
                name = f"y{group}_{stage}"
                self.free[group, stage] = pulp.LpVariable(name, cat=pulp.LpBinary)
                if stage > first:
                    self._at_most((group, stage - 1), (group, stage))
        for before, after in self.groups.edges:
            low = max(self.earliest[before], self.earliest[after])
            high = min(self.latest[before], self.latest[after])
            for stage in range(low, high):
                self._at_most((after, stage), (before, stage))

    def _at_most(self, low: tuple[int, int], high: tuple[int, int]) -> None:
        self.rows.add([(self.free[low], 1.0), (self.free[high], -1.0)], "<=", 0.0)

    def _cut(self, stage: int) -> list[Term]:
        """Return, for each value, whether it crosses the boundary after a stage."""
        return [
            self._crosses(f"c{index}_{stage}", value.producer, value.consumers, stage)
            for index, value in enumerate(self.groups.values)
        ]

    def _crosses(
        self, name: str, producer: int, readers: Iterable[int], stage: int
    ) -> Term:
        made = self.upto(producer, stage)
        if is_zero(made):
            return 0
        read = [self.upto(reader, stage) for reader in readers]
        if any(is_zero(term) for term in read):
            return made
        late = [term for term in read if not isinstance(term, int)]
        if not late:
            return 0
        if len(late) == 1 and isinstance(made, int):
            return made - late[0]
        crossing = pulp.LpVariable(name, 0, 1)
        for term in late:
            self.rows.add([(crossing, 1.0), (made, -1.0), (term, 1.0)], ">=", 0.0)
        return crossing

    def _objective(
        self, again: Sequence[Term], target_s: float | None, longest_s: float
    ) -> None:
        """Add rank times: work and recomputation by speed, and communication."""
        problem, scale = self.groups.problem, 1.0 / self.scale_s
        longest_weight, sum_weight = problem.weights
        cap = None if math.isinf(longest_s) else longest_s * scale * (1 + SLACK)
        longest = pulp.LpVariable("longest", 0, cap)
        spent = self._stage_times(again, scale)
        for rank in range(problem.ranks):
            terms = [term for stage in problem.stages_of(rank) for term in spent[stage]]
            self.rows.add([*terms, (longest, -1.0)], "<=", 0.0)
        total = [(longest, longest_weight)]
        if sum_weight:
            total += [(t, sum_weight * f) for stage in spent for t, f in stage]
            if target_s is not None:
                self.rows.add(total, "<=", target_s * scale)
        self.model.setObjective(weighted(total))

    def _stage_times(
        self, again: Sequence[Term], scale: float
    ) -> list[list[tuple[Term, float]]]:
        """Return the terms whose sum is the scaled time of each stage."""
        done = [self._done(s, scale) for s in range(self.stages)]
        spent = self._communication(scale)
        for s, terms in enumerate(spent):
            speed = self.groups.problem.speed(s)
            terms += [(done[s], 1 / speed), (again[s], 1 / speed)]
            if s:
                terms.append((done[s - 1], -1 / speed))
        return spent

    def _communication(self, scale: float) -> list[list[tuple[Term, float]]]:
        problem = self.groups.problem
        if problem.transfer == "ends":
            return [[(self._ends(s, scale), 1.0)] for s in range(self.stages)]
        hops = [
            0 if problem.is_free(s + 1) else self._hops(s, scale)
            for s in range(self.stages - 1)
        ]
        around = [0, *hops, 0]
        return [[(around[s], 1.0), (around[s + 1], 1.0)] for s in range(self.stages)]

    def _ends(self, stage: int, scale: float) -> Any:
        """Return the time of the values that a stage writes or reads."""
        terms = []
        for index, value in enumerate(self.groups.values):
            made = self.on(value.producer, stage)
            read = [self.on(reader, stage) for reader in value.consumers]
            left = [(made, term) for term in read] + [(term, made) for term in read]
            flag = self._positive(f"e{index}_{stage}", left)
            terms.append((flag, scale * value.hop_s))
        return self.rows.equal(f"h{stage}", terms)

    def _positive(self, name: str, pairs: Sequence[tuple[Term, Term]]) -> Term:
        """Return 1 if one term exceeds its partner, 0 if none can, or a variable."""
        open_pairs = []
        for high, low in pairs:
            if isinstance(high, int) and isinstance(low, int):
                if high > low:
                    return 1
            elif not (is_zero(high) or (isinstance(low, int) and low > 0)):
                open_pairs.append((high, low))
        if not open_pairs:
            return 0
        found = pulp.LpVariable(name, 0, 1)
        for high, low in open_pairs:
            self.rows.add([(found, 1.0), (high, -1.0), (low, 1.0)], ">=", 0.0)
        return found

    def _done(self, stage: int, scale: float) -> Any:
        work = self.groups.work_s.tolist()
        terms = ((self.upto(g, stage), scale * work[g]) for g in range(len(work)))
        return self.rows.equal(f"w{stage}", terms)

    def _hops(self, stage: int, scale: float) -> Any:
        pairs = zip(self.cuts[stage], self.groups.values, strict=True)
        far = self.groups.problem.is_far(stage + 1)
        terms = ((term, scale * value.crossing_s(far=far)) for term, value in pairs)
        return self.rows.equal(f"h{stage}", terms)

    def _weights(self) -> None:
        """Give every stage at least one group with a parameter of its own."""
        weighted = [g for g, flag in enumerate(self.groups.weighted) if flag]
        for stage in range(self.stages):
            here = [g for g in weighted if self.earliest[g] <= stage <= self.latest[g]]
            self.rows.add(((self.on(g, stage), 1.0) for g in here), ">=", 1.0)

    def _quotas(self) -> None:
        """Give every stage equally many of some parts."""
        for quota in self.groups.quotas:
            for stage in range(self.stages):
                held = (
                    (self.on(g, stage), float(n)) for g, n in enumerate(quota.counts)
                )
                self.rows.add(held, "==", float(quota.each))
