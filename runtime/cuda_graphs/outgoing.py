"""What a recorded forward returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.runtime.cuda_graphs.refusal import NotReplayedError
from partitioner.runtime.python_state import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Outgoing"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How the values of a forward come from its inputs and from what it has made.

    Args:
        places: Of each value: ``("input", index)``, ``("made", index)`` or
            ``("value", what it is)``.
    """

    places: tuple[tuple[str, Any], ...]

    @classmethod
    def of(
        cls, values: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[Outgoing, list[Tensor]]:
        """Return it for a forward that has run, and the tensors that it has made.

        Args:
            values: What came out.
            inputs: What went in, position by position.

        Raises:
            NotReplayedError: A value cannot be handed on by a replay.
        """
        index_of = {id(each): i for i, each in enumerate(inputs)}
        memory = {
            each.untyped_storage().data_ptr(): i
            for i, each in enumerate(inputs)
            if isinstance(each, Tensor)
        }
        made: dict[int, Tensor] = {}
        places: list[tuple[str, Any]] = []
        for value in values:
            if not isinstance(value, Tensor):
                if not isinstance(value, PLAIN):
                    raise NotReplayedError(f"it returns a {type(value).__name__}")
                places.append(("value", value))
            elif id(value) in index_of:
                places.append(("input", index_of[id(value)]))
            elif value.untyped_storage().data_ptr() in memory:
                raise NotReplayedError("it returns a part of what it is given")
            else:
                made.setdefault(id(value), value)
                places.append(("made", list(made).index(id(value))))
        if len({each.untyped_storage().data_ptr() for each in made.values()}) < len(
            made
        ):
            # Who writes one of them in place writes them all, also for autograd.
            raise NotReplayedError("it returns several views of one memory")
        return cls(tuple(places)), list(made.values())

    def values(self, inputs: Sequence[Any], made: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the values of another run.

        Args:
            inputs: What went into it.
            made: What it has made, in the order of :meth:`of`.
        """
        found = {"input": inputs, "made": made}
        return tuple(
            what if kind == "value" else found[kind][what] for kind, what in self.places
        )
