"""Simulation → a Chrome trace, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.simulate.simulation import Event, Simulation

__all__ = ["chrome_trace"]

_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input_gradient": "input gradient",
    "weight_gradient": "weight gradient",
    "activation": "activations",
    "gradient": "gradients",
}


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """Return the step in the Trace Event Format: one process for each rank.

    Times are in microseconds. A counter shows the micro-batches in flight.

    Args:
        simulation: What to write.

    Returns:
        Plain data for a JSON file.
    """
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": simulation.schedule,
            "step_s": simulation.step_s,
            "bubble_share": simulation.bubble_share,
        },
        "traceEvents": [*_processes(simulation), *_events(simulation)],
    }


def _processes(simulation: Simulation) -> Iterator[dict[str, Any]]:
    for rank in range(len(simulation.ranks)):
        named = {"name": f"rank {rank} (predicted)"}
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": named}
        order = {"sort_index": rank}
        yield {
            "name": "process_sort_index",
            "ph": "M",
            "pid": rank,
            "tid": 0,
            "args": order,
        }


def _events(simulation: Simulation) -> Iterator[dict[str, Any]]:
    held: dict[int, int] = {}
    for event in simulation.events:
        if held.get(event.rank) != event.held:
            held[event.rank] = event.held
            yield _counter(event.rank, event.start_s, event.held)
        yield _slice(event)
    for rank, use in enumerate(simulation.ranks):
        yield _counter(rank, use.last_s, 0)


def _slice(event: Event) -> dict[str, Any]:
    message = event.kind in ("activation", "gradient")
    return {
        "name": f"{_NAMES[event.kind]} {event.micro_batch}",
        "cat": "communication" if message else event.kind,
        "ph": "X",
        "pid": event.rank,
        "tid": 0,
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "args": {"micro_batch": event.micro_batch, "chunk": event.chunk},
    }


def _counter(rank: int, time_s: float, held: int) -> dict[str, Any]:
    return {
        "name": "in flight",
        "ph": "C",
        "pid": rank,
        "tid": 0,
        "ts": time_s * 1e6,
        "args": {"micro-batches": held},
    }
