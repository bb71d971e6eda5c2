"""State what the user wants kept whole, together, pinned or even, in units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.capture.constraints import calls_by_path
from partitioner.solve.problem import Constraint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import fx

    from partitioner.cost.units import Units
    from partitioner.graph import ModelGraph

__all__ = ["constraints"]


def constraints(graph: ModelGraph, units: Units) -> Iterator[Constraint]:
    """Yield the constraints of a model, with the words the user gave."""
    calls = calls_by_path(graph.graph, graph.spans)

    def parts(paths: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the units of each call."""
        found = (
            _units(units, nodes) for path in paths for nodes in calls.get(path, ())
        )
        return tuple(part for part in found if part)

    asked = graph.constraints
    for group in asked.keep_together:
        joined = sorted({unit for part in parts(group) for unit in part})
        if joined:
            yield Constraint(
                kind="together",
                words=f"keep_together {_listed(group)}",
                parts=(tuple(joined),),
            )
    whole = parts(asked.no_cut_inside)
    if whole:
        words = f"no_cut_inside {_listed(asked.no_cut_inside)}"
        yield Constraint(kind="together", words=words, parts=whole)
    for path, stage in asked.pin:
        pinned = parts([path])
        if pinned:
            words = f"pin {path} to stage {stage}"
            yield Constraint(kind="pin", words=words, parts=pinned, stage=stage)
    even = parts(asked.equal_stages)
    if even:
        words = f"equal_stages {_listed(asked.equal_stages)}"
        yield Constraint(kind="equal", words=words, parts=even)


def _units(units: Units, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
    return tuple(sorted({units.unit_of[n] for n in nodes if n in units.unit_of}))


def _listed(paths: Sequence[str]) -> str:
    if len(paths) > 3:  # noqa: PLR2004 -- the ends tell enough
        return f"{paths[0]} … {paths[-1]} ({len(paths)} modules)"
    return ", ".join(paths)
