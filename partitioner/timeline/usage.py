"""Trace → where the time of a step went: by stage, by rank, and waiting for whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partitioner.timeline.trace_file import Forecast, GpuUse, Interval, Trace

__all__ = ["RankUse", "RunUse", "StageUse", "usage"]

UNEVEN = 1.05
"""A stage that takes so many times the mean of the others is worth a new plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """What one micro-batch took on a stage: medians over steps and micro-batches."""

    stage: int
    ranks: tuple[int, ...]
    """Who ran it: one for each replica."""
    forward_s: float
    backward_s: float
    """Without what was recomputed."""
    recompute_s: float
    modules_s: Mapping[str, float] = field(default_factory=dict)
    """Forward of every module that was called whole, all its calls together."""

    @property
    def busy_s(self) -> float:
        """What one micro-batch took in all."""
        return self.forward_s + self.backward_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """How a rank spent a step, from the first pass of any rank to the last."""

    rank: int
    compute_s: float
    waits_s: Mapping[int, float]
    """Time in exchanges, by the stage at the other end; sent or waited for."""
    bubble_share: float
    """Share of the step in which it ran no pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUse:
    """Where the time of a run's steps went."""

    steps: int
    micro_batches: int
    step_s: float
    """From the first pass of any rank to the last: without the optimizer's step."""
    optimizer_s: float
    """The longest of any rank."""
    stages: tuple[StageUse, ...]
    ranks: tuple[RankUse, ...]
    forecast: Forecast | None
    gpu_use: tuple[GpuUse, ...] = ()
    """By rank, where it is known whether it was sampled."""
    fingerprint: str = ""
    """Of the model that ran."""

    @property
    def bubble_share(self) -> float:
        """Share of the time of all ranks in which they ran no pass."""
        return fmean(rank.bubble_share for rank in self.ranks)

    @property
    def slowest(self) -> StageUse:
        """The stage that all others wait for."""
        return max(self.stages, key=lambda stage: stage.busy_s)

    @property
    def unevenness(self) -> float:
        """How many times the mean of the other stages the slowest takes."""
        others = [each.busy_s for each in self.stages if each is not self.slowest]
        return self.slowest.busy_s / fmean(others) if others and fmean(others) else 1.0

    @property
    def uneven(self) -> bool:
        """Whether a new plan by these times promises something."""
        return self.unevenness > UNEVEN

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json`` (``schema_version`` 1)."""
        return {
            "schema_version": 1,
            "kind": "fx-partitioner usage",
            "steps": self.steps,
            "micro_batches": self.micro_batches,
            "step_s": self.step_s,
            "optimizer_s": self.optimizer_s,
            "bubble_share": self.bubble_share,
            "slowest_stage": self.slowest.stage,
            "slowest_to_others": self.unevenness,
            "replan_advised": self.uneven,
            "gpu_use": [_use(each) for each in self.gpu_use],
            "forecast": self.forecast and self.forecast.model_dump(),
            "stages": [
                {
                    "stage": stage.stage,
                    "ranks": list(stage.ranks),
                    "forward_s": stage.forward_s,
                    "backward_s": stage.backward_s,
                    "recompute_s": stage.recompute_s,
                    "modules_s": dict(stage.modules_s),
                }
                for stage in self.stages
            ],
            "ranks": [
                {
                    "rank": rank.rank,
                    "compute_s": rank.compute_s,
                    "bubble_share": rank.bubble_share,
                    "waits_s": {str(peer): s for peer, s in rank.waits_s.items()},
                }
                for rank in self.ranks
            ],
        }


def usage(trace: Trace) -> RunUse:
    """Sum up a trace.

    Args:
        trace: One or more whole steps.
    """
    kinds: dict[str, list[Interval]] = defaultdict(list)
    for each in trace.intervals:
        kinds[each.kind].append(each)
    windows = _windows([*kinds["forward"], *kinds["backward"]])
    return RunUse(
        steps=len(windows),
        micro_batches=trace.about.micro_batches,
        step_s=median(end_s - start_s for start_s, end_s in windows.values()),
        optimizer_s=_longest(kinds["optimizer step"]),
        stages=tuple(_stage(stage, kinds) for stage in range(trace.about.stages)),
        ranks=tuple(_rank(rank, trace, windows) for rank in range(trace.about.ranks)),
        forecast=trace.about.forecast,
        gpu_use=tuple(trace.about.gpu_use),
        fingerprint=trace.about.fingerprint,
    )


def _windows(passes: Iterable[Interval]) -> dict[int, tuple[float, float]]:
    """Return when the passes of every step began and ended, on any rank."""
    found: dict[int, tuple[float, float]] = {}
    for each in passes:
        start_s, end_s = found.get(each.step, (each.start_s, each.end_s))
        found[each.step] = (min(start_s, each.start_s), max(end_s, each.end_s))
    return found


def _longest(intervals: Sequence[Interval]) -> float:
    by_rank: dict[int, list[float]] = defaultdict(list)
    for each in intervals:
        by_rank[each.rank].append(each.took_s)
    return max((median(took_s) for took_s in by_rank.values()), default=0.0)


def _stage(stage: int, kinds: Mapping[str, Sequence[Interval]]) -> StageUse:
    mine = {
        kind: [each for each in kinds.get(kind, ()) if each.stage == stage]
        for kind in ("forward", "backward", "recompute", "module")
    }
    again: dict[Any, float] = defaultdict(float)
    for each in mine["recompute"]:
        again[_pass(each)] += each.took_s
    backwards = mine["backward"]
    return StageUse(
        stage=stage,
        ranks=tuple(sorted({each.rank for each in mine["forward"]})),
        forward_s=median(each.took_s for each in mine["forward"]),
        backward_s=median(each.took_s - again[_pass(each)] for each in backwards),
        recompute_s=median(again[_pass(each)] for each in backwards),
        modules_s=_modules(mine["module"], mine["forward"]),
    )


def _modules(
    calls: Iterable[Interval], forwards: Sequence[Interval]
) -> dict[str, float]:
    """Return the seconds of every module in a forward; recomputed ones apart.

    The median share of those forwards in which modules were timed, of the median
    forward of all: those that were timed may be slower than the others.
    """
    spans = {_pass(each): each for each in forwards}
    sums: dict[str, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    for call in calls:
        around = spans.get(_pass(call))
        if not around or not around.took_s:
            continue
        if around.start_s <= call.start_s and call.end_s <= around.end_s:
            sums[call.name][_pass(call)] += call.took_s / around.took_s
    whole_s = median(each.took_s for each in forwards)
    return {name: whole_s * median(found.values()) for name, found in sums.items()}


def _use(each: GpuUse) -> dict[str, Any]:
    if each.not_sampled:
        return {"not_sampled": each.not_sampled}
    return each.model_dump(exclude={"not_sampled"})


def _pass(each: Interval) -> tuple[int, int, int, int]:
    return each.rank, each.step, each.stage, each.micro_batch


def _rank(
    rank: int, trace: Trace, windows: Mapping[int, tuple[float, float]]
) -> RankUse:
    compute_s = dict.fromkeys(windows, 0.0)
    waits_s: dict[int, float] = defaultdict(float)
    for each in trace.intervals:
        if each.rank != rank:
            continue
        if each.kind in ("forward", "backward"):
            compute_s[each.step] += each.took_s
        for peer in each.peers:
            waits_s[peer] += each.took_s / len(each.peers) / len(windows)
    shares = [1 - compute_s[s] / (end - start) for s, (start, end) in windows.items()]
    return RankUse(
        rank=rank,
        compute_s=median(compute_s.values()),
        waits_s=dict(sorted(waits_s.items())),
        bubble_share=median(max(0.0, share) for share in shares),
    )
