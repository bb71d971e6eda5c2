"""Intervals of all ranks → a document in the Trace Event Format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["KIND", "SCHEMA_VERSION", "trace_document"]

KIND = "fx-partitioner trace"
SCHEMA_VERSION = 1
_PREDICTED = 1_000_000
"""Added to a rank's number where its simulated step is shown."""
_NUMBERED = frozenset({"load", "forward", "backward"})


def trace_document(
    ranks: Sequence[Mapping[str, Any]],
    *,
    about: Mapping[str, Any],
    predicted: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the trace as plain data: one process for each rank, times from 0.

    Args:
        ranks: ``stage``, ``replica`` and ``intervals`` of every rank, on one clock.
        about: Facts of the run and the plan; they go under ``otherData``.
        predicted: Trace events of one simulated step; they begin where the first
            recorded step does.
    """
    began_s = min(each["start_s"] for rank in ranks for each in rank["intervals"])
    return {
        "displayTimeUnit": "ms",
        "otherData": {"kind": KIND, "schema_version": SCHEMA_VERSION, **about},
        "traceEvents": [
            *_processes(ranks),
            *_slices(ranks, began_s),
            *({**event, "pid": event["pid"] + _PREDICTED} for event in predicted),
        ],
    }


def _processes(ranks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    replicas = len({rank["replica"] for rank in ranks})
    for number, rank in enumerate(ranks):
        stages = sorted({each["stage"] for each in rank["intervals"]})
        name = f"rank {number}: stage {' and '.join(map(str, stages))}"
        if replicas > 1:
            name += f", replica {rank['replica']}"
        for kind, args in (
            ("process_name", {"name": name}),
            ("process_sort_index", {"sort_index": number}),
        ):
            yield {"name": kind, "ph": "M", "pid": number, "tid": 0, "args": args}


def _slices(
    ranks: Sequence[Mapping[str, Any]], began_s: float
) -> Iterator[dict[str, Any]]:
    for number, rank in enumerate(ranks):
        for each in rank["intervals"]:
            args = {
                "step": each["step"],
                "stage": each["stage"],
                "micro_batch": each["micro_batch"],
            }
            if each["peers"]:
                args["peers"] = each["peers"]
            yield {
                "name": _name(each),
                "cat": each["kind"],
                "ph": "X",
                "pid": number,
                "tid": 0,
                "ts": (each["start_s"] - began_s) * 1e6,
                "dur": (each["end_s"] - each["start_s"]) * 1e6,
                "args": args,
            }


def _name(each: Mapping[str, Any]) -> str:
    if each["module"]:
        return str(each["module"])
    if each["kind"] in _NUMBERED:
        return f"{each['kind']} {each['micro_batch']}"
    return str(each["kind"])
