"""State what the user wants kept whole, together, pinned or even, in units.

And what must be: a value that no boundary can carry stays with its readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.capture.constraints import calls_by_path
from partitioner.capture.unsendable import unsendable_values
from partitioner.graph import info
from partitioner.solve.parts import Constraint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import fx

    from partitioner.cost.units import Units
    from partitioner.graph import ModelGraph

__all__ = ["constraints"]


def constraints(graph: ModelGraph, units: Units) -> Iterator[Constraint]:
    """Yield the constraints of a model, with the words the user gave."""
    yield from _needs(graph, units)
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


def _needs(graph: ModelGraph, units: Units) -> Iterator[Constraint]:
    """Yield what keeps the values that cannot be sent beside what reads them."""
    for node, what in unsendable_values(graph).items():
        joined = _units(units, [node, *node.users]) if node in units.unit_of else ()
        if len(joined) > 1:
            facts = info(node)
            yield Constraint(
                kind="together",
                words=f"{node.name!r} ({facts.source or facts.id}) is {what}, which no "
                "boundary can carry",
                parts=(joined,),
                wished=False,
            )


def _units(units: Units, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
    return tuple(sorted({units.unit_of[n] for n in nodes if n in units.unit_of}))


def _listed(paths: Sequence[str]) -> str:
    if len(paths) > 3:  # noqa: PLR2004 -- the ends tell enough
        return f"{paths[0]} … {paths[-1]} ({len(paths)} modules)"
    return ", ".join(paths)
