"""What no boundary can carry, named with its source line before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import EmitError
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

__all__ = ["check_boundary"]


def check_boundary(
    values: Sequence[fx.Node], unsendable: Mapping[fx.Node, str], stage: int
) -> None:
    """Refuse a boundary that a value cannot cross.

    A plan has none: the solver keeps such a value and its readers on one stage.

    Args:
        values: What crosses.
        unsendable: As ``unsendable_values`` returns.
        stage: The stage that sends it.

    Raises:
        EmitError: Names the value, what it is, and the line that makes it.
    """
    for node in values:
        if node in unsendable:
            facts = info(node)
            raise EmitError(
                f"{node.name!r} ({facts.source or facts.id}) leaves stage {stage} for "
                f"the next and is {unsendable[node]}: only a dense tensor can be sent",
                hint="put what makes it and what reads it on one stage",
            )
