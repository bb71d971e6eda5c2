"""Python state that the root changes in its forward, and does nothing by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.capture.merge import check_sizes
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.structure import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from partitioner.capture.records import Recording

__all__ = ["CountersChanged", "idle_counters", "idle_note"]

HINT = (
    "count in a registered buffer (self.steps += 1), or in a submodule of its own, "
    "which runs as a whole with its Python state"
)


class CountersChanged(LeafNeeded):
    """A module's own code has changed plain attributes.

    Args:
        path: The module.
        names: The attributes, by their paths.
        source: ``file:line``.
    """

    def __init__(self, path: str, names: Sequence[str], source: str) -> None:
        reason = f"it changes {', '.join(names[:3])}, which its next forward sees"
        super().__init__(path, reason, source, HINT)
        self.names = frozenset(names)


def idle_counters(
    record_twice: Callable[[frozenset[str]], Sequence[Recording]],
    names: frozenset[str],
) -> frozenset[str]:
    """Say which of the root's counters change nothing that is recorded.

    Args:
        record_twice: Records two forwards in a row, the second with what the first
            left behind; takes the attributes that may change.
        names: What the forward was seen to change.

    Returns:
        All that it changes, if the second forward did exactly what the first did;
        otherwise nothing.
    """
    if any("." in name for name in names):
        return frozenset()  # a submodule may do anything by its own
    try:
        first, second = record_twice(names)
        check_sizes(first, second, ())
    except CountersChanged as more:
        grown = names | more.names
        at_root = not more.path and grown != names
        return idle_counters(record_twice, grown) if at_root else frozenset()
    except (MismatchError, LeafNeeded, Exception):
        return frozenset()
    return names


def idle_note(names: Iterable[str]) -> str:
    """Say what was taken for granted of the root's counters."""
    return (
        f"the root changes {', '.join(sorted(names))} in its forward, and its next "
        "forward does nothing else by that: the pipeline leaves the attributes as they "
        "are, and takes no branch that a later value would take"
    )
