"""The plan in one look: its figures, and the pipeline from end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.report.facts import facts
from partitioner.report.html.section import Section, slowest_rank
from partitioner.report.names import compress_names, omit_repeats
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["section"]

_NAMES_SHOWN = 5


def section(document: Mapping[str, Any]) -> Section:
    """Build the top of the page."""
    context = {"figures": list(_figures(document)), "pipeline": _pipeline(document)}
    return Section(id="summary", title="The plan", short="Plan", context=context)


def _figures(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield figures with their labels and a few words each."""
    simulated = document["simulation"]
    step_s = simulated["step_s"]
    yield _figure(
        "step time",
        format_seconds(step_s),
        f"simulated; {format_seconds(document['objective_s'])} by the formula",
    )
    yield _figure(
        "bubble",
        format_share(simulated["bubble_share"]),
        "of all stage time is idle, simulated",
    )
    slowest = slowest_rank(document)
    names = ", ".join(str(stage) for stage in slowest["stages"])
    yield _figure(
        "bottleneck",
        f"stage {names}" if len(slowest["stages"]) == 1 else f"stages {names}",
        f"{format_seconds(slowest['time_s'])} for one micro-batch",
    )
    yield _memory(document)
    said = dict(facts(document))["gap"][0]
    optimal = said.startswith("optimal")
    yield _figure("gap", "optimal" if optimal else format_share(document["gap"]), said)
    yield from _rival(document["comparison"]["splits"])


def _figure(label: str, figure: str, sentence: str) -> dict[str, str]:
    return {"label": label, "figure": figure, "sentence": sentence}


def _memory(document: Mapping[str, Any]) -> dict[str, str]:
    ranks = document["ranks"]
    fullest = max(range(len(ranks)), key=lambda rank: _fullness(ranks[rank]))
    limit_bytes = ranks[fullest]["memory_limit_bytes"]
    limit = "" if limit_bytes is None else f", of {format_bytes(limit_bytes)}"
    figure = format_bytes(ranks[fullest]["memory_bytes"])
    return _figure("memory", figure, f"on rank {fullest}, the fullest{limit}")


def _fullness(rank: Mapping[str, Any]) -> float:
    return float(rank["memory_bytes"]) / (rank["memory_limit_bytes"] or 1)


def _rival(splits: list[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield what the plan gains on the best of DeepSpeed's methods that can train."""
    mine = splits[0]["simulated_s"]
    rivals = [s for s in splits[1:] if "DeepSpeed" in s["name"] and not s["faults"]]
    if rivals and mine > 0:
        best = min(rivals, key=lambda split: split["simulated_s"])
        yield _figure(
            f"speed, next to {best['name']}",
            f"{best['simulated_s'] / mine:.2f} ×",
            f"its step takes {format_seconds(best['simulated_s'])}, simulated alike",
        )


def _pipeline(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Describe every stage and what it sends to the next."""
    longest_s = max(stage["time_s"] for stage in document["stages"]) or 1.0
    slowest = slowest_rank(document)["stages"]
    return [
        {
            "index": stage["index"],
            "busiest": stage["index"] in slowest,
            "names": _names(stage["modules"]),
            "time": format_seconds(stage["time_s"]),
            "share": stage["time_s"] / longest_s,
            "parameters": format_count(stage["parameters"]),
            "memory": format_bytes(stage["memory_bytes"]),
            "checkpointed": len(stage["checkpointed"]),
            "sent": format_bytes(stage["sent_bytes"]) if stage["sent_bytes"] else "",
        }
        for stage in document["stages"]
    ]


def _names(modules: list[str]) -> list[str]:
    names = omit_repeats(compress_names(modules))
    hidden = len(names) - _NAMES_SHOWN
    if hidden > 1:
        middle = f"… {hidden} more …"
        return [*names[: _NAMES_SHOWN - 2], middle, *names[-2:]]
    return names
