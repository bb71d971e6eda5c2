"""What a pipeline's modules took, joined over its ranks: data, and a table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from partitioner.runtime.profiling.ranges import Place

__all__ = ["ModuleTimes", "RankTimes", "StepProfile", "joined"]

GLUE = "(outside of modules)"
ROWS = 8
"""The table has so many modules of a stage; the others are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTimes:
    """What one micro-batch took in a module: means over micro-batches and replicas.

    Without the modules inside of it, which are called by themselves; so the rows of a
    stage add up to the stage.
    """

    stage: int
    path: str
    """In the original model; in brackets what is no module."""
    calls: float
    """Forward calls."""
    forward_s: float
    backward_s: float
    recompute_s: float
    share: float
    """Of all that a micro-batch takes on the stage."""

    @property
    def total_s(self) -> float:
        """All passes together."""
        return self.forward_s + self.backward_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What one rank found, in seconds over all its profiled steps."""

    seconds: Mapping[Place, float]
    calls: Mapping[Place, int]


@dataclass(slots=True, kw_only=True)
class StepProfile:
    """What a profile tells; empty until its block has ended."""

    steps: int = 0
    """Profiled, without those waited for and those of the warm-up."""
    clock: str = ""
    """What the times are of: kernels of the device, or the host's clock."""
    modules: tuple[ModuleTimes, ...] = ()
    """Of all stages, by stage, the longest first; equal on all ranks."""

    def stage(self, stage: int) -> tuple[ModuleTimes, ...]:
        """Return the rows of one stage, the longest first."""
        return tuple(each for each in self.modules if each.stage == stage)

    def table(self) -> RenderableType:
        """Return the longest modules of every stage as a table for the console."""
        title = f"{self.steps} profiled steps, one micro-batch, {self.clock}"
        table = Table(box=box.SIMPLE_HEAD, padding=0, title=title, title_justify="left")
        table.add_column("Stage", justify="right")
        table.add_column("Module")
        for heading in ("Calls", "Forward", "Backward", "Recomp.", "Share"):
            table.add_column(heading, justify="right", no_wrap=True)
        for stage in sorted({each.stage for each in self.modules}):
            for each in _shortened(self.stage(stage)):
                table.add_row(*_cells(each))
            table.add_section()
        return table


def joined(ranks: Sequence[RankTimes]) -> tuple[ModuleTimes, ...]:
    """Return the means over micro-batches and replicas, by stage, the longest first.

    Args:
        ranks: What every rank found.
    """
    passes: dict[int, int] = defaultdict(int)
    seconds: dict[tuple[int, str], dict[str, float]] = {}
    calls: dict[tuple[int, str], int] = defaultdict(int)
    for rank in ranks:
        for place, found_s in rank.seconds.items():
            row = seconds.setdefault((place.stage, place.path), defaultdict(float))
            row[place.phase] += found_s
        for place, count in rank.calls.items():
            if place.phase == "forward":
                calls[place.stage, place.path] += count
                passes[place.stage] += 0 if place.path else count
    whole_s: dict[int, float] = defaultdict(float)
    for (stage, _), row in seconds.items():
        whole_s[stage] += sum(row.values())
    rows = [
        ModuleTimes(
            stage=stage,
            path=path or GLUE,
            calls=calls[stage, path] / passes[stage],
            forward_s=row["forward"] / passes[stage],
            backward_s=row["backward"] / passes[stage],
            recompute_s=row["recompute"] / passes[stage],
            share=sum(row.values()) / whole_s[stage] if whole_s[stage] else 0.0,
        )
        for (stage, path), row in seconds.items()
        if passes[stage]
    ]
    return tuple(sorted(rows, key=lambda each: (each.stage, -each.total_s, each.path)))


def _shortened(rows: Sequence[ModuleTimes]) -> Iterator[ModuleTimes]:
    yield from rows[:ROWS]
    rest = rows[ROWS:]
    if rest:
        yield ModuleTimes(
            stage=rest[0].stage,
            path=f"({len(rest)} others)",
            calls=sum(each.calls for each in rest),
            forward_s=sum(each.forward_s for each in rest),
            backward_s=sum(each.backward_s for each in rest),
            recompute_s=sum(each.recompute_s for each in rest),
            share=sum(each.share for each in rest),
        )


def _cells(each: ModuleTimes) -> list[str]:
    return [
        str(each.stage),
        each.path,
        f"{each.calls:g}",
        _ms(each.forward_s),
        _ms(each.backward_s),
        _ms(each.recompute_s) if each.recompute_s else "–",
        f"{100 * each.share:.1f} %",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
