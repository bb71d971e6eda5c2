"""Events of torch.profiler → seconds of every module, on this rank."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch._C._autograd import DeviceType

from partitioner.runtime.profiling.ranges import PUT_OFF, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.runtime.profiling.ranges import Ranges

__all__ = ["own_times"]

_NODE = "autograd::engine::evaluate_function: "
_SUM = "AccumulateGrad"


def own_times(
    events: Iterable[Any], ranges: Ranges, *, on_device: bool
) -> tuple[Mapping[Place, float], Mapping[Place, int]]:
    """Return the seconds and the calls of every place, without those inside of it.

    Args:
        events: Of a finished profile: ``profile.events()``.
        ranges: What was marked meanwhile.
        on_device: Count the time of kernels, not the host's.
    """
    found = _Found(ranges, on_device=on_device)
    roots = [
        each
        for each in events
        if each.device_type == DeviceType.CPU and each.cpu_parent is None
    ]
    for each in sorted(roots, key=lambda event: (event.thread, event.time_range.start)):
        found.walk(each, None)
    return found.seconds, found.calls


class _Found:
    """Walks trees of events: a marked event has what no marked one inside of it has."""

    def __init__(self, ranges: Ranges, *, on_device: bool) -> None:
        self._ranges = ranges
        self._on_device = on_device
        self._last: dict[int, Place] = {}
        """What the last node on a thread was for."""
        self.seconds: dict[Place, float] = defaultdict(float)
        self.calls: dict[Place, int] = defaultdict(int)

    def walk(self, event: Any, around: Place | None) -> tuple[float, float]:
        """Return an event's seconds, and how many of them are a place's already."""
        place = self._place(event, around)
        total_s = self._own_s(event)
        taken_s = 0.0
        inside = sorted(event.cpu_children, key=lambda child: child.time_range.start)
        for child in inside:
            child_s, child_taken_s = self.walk(child, place or around)
            total_s += child_s if self._on_device else 0.0
            taken_s += child_taken_s
        if place is None:
            return total_s, taken_s
        self.seconds[place] += total_s - taken_s
        self.calls[place] += 1
        return total_s, total_s

    def _own_s(self, event: Any) -> float:
        """Return the host's time of an event, or that of the kernels it launched."""
        if not self._on_device:
            return float(event.time_range.elapsed_us()) / 1e6
        if event.name in self._ranges.places:
            return 0.0  # the device's copy of a range is no kernel
        return sum(float(kernel.duration) for kernel in event.kernels) / 1e6

    def _place(self, event: Any, around: Place | None) -> Place | None:
        """Return what a marked event is for; None: it is part of what is around it."""
        marked = self._ranges.places.get(event.name)
        if marked is not None:
            return marked
        if not event.name.startswith(_NODE):
            return None
        if around is not None and (
            around.phase != "backward" or around.path == PUT_OFF
        ):
            return None  # a backward within a forward, or of weights alone
        place = self._ranges.made_by(event.sequence_nr)
        if event.name.endswith(_SUM) or place is None:
            # A sum follows the node that made the gradient at once: it has no number.
            return None if around is not None else self._last.get(event.thread)
        self._last[event.thread] = place
        return place
