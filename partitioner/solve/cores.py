"""Merges small groups into their neighbours, without loss or with a known one.

Branches beside each other multiply the possible cuts: weights that are rearranged at
each layer, keys and values that a decoder reads from the encoder, the queries, keys and
values of one layer. What is merged here is a *core* with satellites around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.contract import Joiner, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

__all__ = ["Cored", "below_each", "cored", "fastest"]


DEARER_SHARE = 0.002
"""Share of the allowance by which one join may make boundaries dearer."""


@dataclass(slots=True)
class _CoreJoiner(Joiner):
    """Joins a group to its only neighbour on one side where no cut gets dearer.

    Let v join its only successor t from an earlier stage. The inputs of v that nothing
    reads from t on (``added``) cross more boundaries; the outputs (``taken``) fewer. No
    boundary gets dearer if ``added <= taken``, and the stage of t is spared
    ``taken - added``: so much work of v may count on the stage of t, wherever v is.
    What is left of its work counts where v is. The same holds for the only predecessor,
    with outputs added and own inputs taken.

    Outputs that are smaller than the input by next to nothing (projections of a time
    embedding) may join as well; what that adds to a boundary is summed up.
    """

    allowance_s: float
    """What may be left of the work of a group that is joined."""
    below: Sequence[int]
    """For each group, the bits of itself and of all that must come after it."""
    work_s: list[float] = field(init=False)
    """Work that counts at each group: its own, and what was moved to it."""
    weighted: list[bool] = field(init=False)
    spared_s: float = field(init=False, default=0.0)
    """What the join last found safe spares both stages."""
    least_spared_s: float = field(init=False, default=math.inf)
    """The least that was spared by joining something with weights."""
    dearer_s: float = field(init=False, default=0.0)
    """What all joins together may have added to one boundary."""

    def __post_init__(self) -> None:
        """Begin with the work of each group."""
        self.work_s = (self.groups.work_s / fastest(self.groups.problem)).tolist()
        self.weighted = list(self.groups.weighted)
        super(_CoreJoiner, self).__post_init__()

    def _free(self) -> Iterator[bool]:
        yield from [True] * len(self.groups)

    def _reaches(self, value: int, target: int) -> bool:
        below = self.below[target]
        return any(below >> reader & 1 for reader in self.readers[value])

    def _safe(  # any neighbour may gain work
        self,
        group: int,
        neighbour: int,  # noqa: ARG002
        *,
        added: set[int],
        taken: set[int],
    ) -> bool:
        spared_s = self.spared_s = self._spared_s(added, taken)
        left_s = self.work_s[group] - max(0.0, spared_s)
        cheap = spared_s >= -DEARER_SHARE * max(0.0, self.allowance_s)
        return cheap and left_s <= self.allowance_s

    def _join(self, group: int, into: int) -> None:
        super(_CoreJoiner, self)._join(group, into)
        self.dearer_s += max(0.0, -self.spared_s)
        spared_s = max(0.0, self.spared_s)
        moved_s = min(self.work_s[group], spared_s)
        self.work_s[group] -= moved_s
        self.work_s[into] += moved_s
        if self.weighted[group]:
            self.weighted[into] = True
            self.least_spared_s = min(self.least_spared_s, spared_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cored:
    """Groups around cores, beside the groups that they were merged from.

    Without a memory limit, no boundary of any assignment gets dearer by more than
    ``dearer_s``, and but for that no stage slower, when satellites move to their cores
    and only the work that counts there is moved with them. Work is done at the fastest
    speed, which bounds the others.
    """

    fine: Groups
    coarse: Groups
    core_of: tuple[int, ...]
    """The fine group that is the core of each coarse group."""
    dearer_s: float
    """What a boundary may cost more than in an assignment with the same cores."""
    work_s: Floats
    """Seconds that count at each fine group; for a core, what was moved to it, too."""
    parted_s: float
    """Least that a stage adds to the cuts if no parameter on it is at its core.

    Some satellite on it was then joined to what lies on another stage, and every
    boundary between pays what that join spared.
    """

    def spent_s(self, held: Flags, even_s: float) -> tuple[Floats, Floats]:
        """Return the seconds that surely lie, and that may lie, before each cut.

        A satellite surely lies before a cut if a core that needs it does, and surely
        behind it if a core that it needs does not. One that has more than an even
        stage to move in counts as neither, nor does one without a core on one side.

        Args:
            held: Which coarse groups have their core before each cut, shape
                (cuts, coarse groups).
            even_s: Work of an even stage.
        """
        cores_s = held @ self.work_s[list(self.core_of)]
        sure_s, open_s = cores_s.copy(), np.zeros(len(held))
        earlier, later = self._nearest()
        cores = set(self.core_of)
        for group, left_s in enumerate(self.work_s.tolist()):
            between = earlier[group] and later[group]
            if group in cores or left_s <= 0 or not between:
                continue
            inside = held[:, list(later[group])].any(axis=1)
            may_be = held[:, list(earlier[group])].all(axis=1) & ~inside
            if may_be.any() and np.ptp(cores_s[may_be]) > even_s:
                continue
            sure_s += left_s * inside
            open_s += left_s * may_be
        return sure_s, open_s

    def _nearest(self) -> tuple[list[set[int]], list[set[int]]]:
        """Return the coarse groups whose cores come next on each side of each group."""
        number = {core: index for index, core in enumerate(self.core_of)}
        earlier: list[set[int]] = [set() for _ in range(len(self.fine))]
        later: list[set[int]] = [set() for _ in range(len(self.fine))]
        for a, b in self.fine.edges:  # sorted: all that comes before a is complete
            earlier[b] |= {number[a]} if a in number else earlier[a]
        for a, b in reversed(self.fine.edges):
            later[a] |= {number[b]} if b in number else later[b]
        return earlier, later


def fastest(problem: Problem) -> float:
    """Return the relative speed of the fastest device."""
    return max(problem.speed(stage) for stage in range(problem.stages))


def below_each(groups: Groups) -> list[int]:
    """Return, for each group, the bits of itself and of all that must come after it."""
    below = [1 << group for group in range(len(groups))]
    for source, target in reversed(groups.edges):  # sorted: the target is complete
        below[source] |= below[target]
    return below


def cored(groups: Groups, allowance_s: float, below: Sequence[int]) -> Cored:
    """Merge groups that can do with little work of their own into a neighbour.

    Args:
        groups: What is to be placed.
        allowance_s: Work of a satellite that may count elsewhere than at its core.
        below: As `below_each` gives it.
    """
    joiner = _CoreJoiner(groups, allowance_s, below)
    label = joiner.run()
    coarse = merged(groups, label)
    cores = [0] * len(coarse)
    for core in sorted(set(label)):
        cores[coarse.group_of[groups.members[core][0]]] = core
    return Cored(
        fine=groups,
        coarse=coarse,
        core_of=tuple(cores),
        work_s=np.array(joiner.work_s),
        parted_s=joiner.least_spared_s,
        dearer_s=joiner.dearer_s,
    )
