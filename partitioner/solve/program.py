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
    from partitioner.solve.intervals import BlockRead
    from partitioner.solve.windows import StageWindows

__all__ = ["Program"]

SLACK = 1e-9
"""Relative rounding that the cap on the stage time is forgiven."""


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
        self.scale_s = float(groups.work_s.sum()) / self.stages or 1.0
        self.model = pulp.LpProblem("stages", pulp.LpMinimize)
        self.rows = Rows(self.model)
        self.free: dict[tuple[int, int], Any] = {}
        self._on: dict[tuple[int, int], Term] = {}
        self._prefixes()
        self.cuts = [self._cut(s) for s in range(self.stages - 1)]
        again: list[Term] = [0] * self.stages
        if groups.problem.memory_limit_bytes is not None:
            again = MemoryRows(self, groups.problem.memory_limit_bytes).add()
        self._objective(again, target_s, longest_s)
        self._trainable()

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
        """Add stage times ``done[s] - done[s-1] + again[s] + hops`` and the step."""
        scale = 1.0 / self.scale_s
        done = [self._done(s, scale) for s in range(self.stages)]
        hops = [self._hops(s, scale) for s in range(self.stages - 1)]
        cap = None if math.isinf(longest_s) else longest_s * scale * (1 + SLACK)
        longest = pulp.LpVariable("longest", 0, cap)
        for s in range(self.stages):
            terms = [(done[s], 1.0), (again[s], 1.0), (longest, -1.0)]
            terms += [(done[s - 1], -1.0), (hops[s - 1], 1.0)] if s else []
            terms += [(hops[s], 1.0)] if s < self.stages - 1 else []
            self.rows.add(terms, "<=", 0.0)
        others = self.groups.problem.micro_batches - 1
        step = [(longest, float(others)), (done[-1], 1.0)]
        step += [(hop, 2.0) for hop in hops] + [(term, 1.0) for term in again]
        self.model.setObjective(weighted(step))
        if target_s is not None:
            self.rows.add(step, "<=", target_s * scale)

    def _done(self, stage: int, scale: float) -> Any:
        work = self.groups.work_s.tolist()
        terms = ((self.upto(g, stage), scale * work[g]) for g in range(len(work)))
        return self.rows.equal(f"w{stage}", terms)

    def _hops(self, stage: int, scale: float) -> Any:
        pairs = zip(self.cuts[stage], self.groups.values, strict=True)
        terms = ((term, scale * value.hop_s) for term, value in pairs)
        return self.rows.equal(f"h{stage}", terms)

    def _trainable(self) -> None:
        """Give every stage at least one group with a trainable parameter."""
        trained = [g for g, flag in enumerate(self.groups.trainable) if flag]
        for stage in range(self.stages):
            here = [g for g in trained if self.earliest[g] <= stage <= self.latest[g]]
            self.rows.add(((self.on(g, stage), 1.0) for g in here), ">=", 1.0)
