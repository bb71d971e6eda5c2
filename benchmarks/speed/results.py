"""The file of results, one line for each run of a variant, and tables of it."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Key", "Results", "table"]

Key = tuple[str, int, str, int]
"""Model, micro-batches, variant and repetition."""

_GIB = 2**30


@dataclass(frozen=True)
class Results:
    """Lines in a file: a variant that has begun, and what came of it.

    Args:
        file: Is made at the first line, and gone on with if it is there.
    """

    file: Path

    def begin(self, key: Key) -> None:
        """Note that a variant is being run: if no result follows, it failed."""
        self._write({"event": "begun", "key": list(key)})

    def add(self, key: Key, **found: Any) -> None:
        """Note what a variant did."""
        self._write({"event": "done", "key": list(key), **found})

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines so far."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def seen(self) -> set[Key]:
        """Return the runs that are done or have failed."""
        return {_key(line) for line in self.lines()}

    def failed(self) -> set[Key]:
        """Return the runs that began and left no result."""
        lines = self.lines()
        done = {_key(line) for line in lines if line["event"] == "done"}
        return {_key(line) for line in lines} - done

    def _write(self, line: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")


def _key(line: dict[str, Any]) -> Key:
    model, micro_batches, variant, repetition = line["key"]
    return model, micro_batches, variant, repetition


def table(results: Results) -> str:
    """Return medians of all repetitions as text, a block for each model."""
    runs: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for line in results.lines():
        if line["event"] == "done":
            model, micro_batches, variant, _ = _key(line)
            block = runs.setdefault((model, micro_batches), {})
            block.setdefault(variant, []).append(line)
    blocks = [_block(*key, found) for key, found in runs.items()]
    failed = [f"failed: {' '.join(map(str, key))}" for key in sorted(results.failed())]
    return "\n\n".join([*blocks, *failed])


def _block(model: str, micro_batches: int, found: dict[str, Any]) -> str:
    rates = {name: _rate(lines) for name, lines in found.items()}
    unit = next(iter(found.values()))[0]["unit"]
    title = f"{model}, {micro_batches} micro-batches"
    head = f"{title:<32} {unit + '/s':>10} {'of ideal':>8} {'of best':>8}"
    rows = [f"{head} {'spread':>7} {'GiB':>6} {'predicted':>9} {'loss':>8}  cut"]
    for name, lines in found.items():
        kind = name.partition("/")[0]
        ideal = rates.get(f"{kind}/one-gpu")
        best = max(_hands(rates, kind), default=None)
        rows.append(
            f"{name:<32} {rates[name]:>10,.0f} {_share(rates[name], ideal, lines)} "
            f"{_ratio(rates[name], best)} {_spread(lines):>7.1%} "
            f"{max(line['peak_bytes'] for line in lines) / _GIB:>6.1f} "
            f"{_predicted(lines):>9} {_first_loss(lines):>8}  {lines[0]['cut']}"
        )
    return "\n".join(rows)


def _hands(rates: dict[str, float], kind: str) -> list[float]:
    """Return the rates of hand-written 1F1B pipelines that are fed on the device."""
    return [
        rate
        for name, rate in rates.items()
        if name.startswith(f"{kind}/hand-") and "dualpipev" not in name
    ]


def _share(rate: float, one: float | None, lines: list[dict[str, Any]]) -> str:
    return _ratio(rate, one * lines[0]["ranks"] if one else None)


def _ratio(rate: float, other: float | None) -> str:
    return f"{rate / other:>8.3f}" if other else f"{'':>8}"


def _step_s(line: dict[str, Any]) -> float:
    return float(statistics.median(line["seconds"]))


def _rate(lines: Iterable[dict[str, Any]]) -> float:
    """Return items per second: the median over repetitions of their medians."""
    lines = list(lines)
    items: float = lines[0]["items"]
    return items / statistics.median(map(_step_s, lines))


def _spread(lines: list[dict[str, Any]]) -> float:
    """Return how far the repetitions are apart, as a share."""
    found = [_step_s(line) for line in lines]
    return (max(found) - min(found)) / min(found)


def _first_loss(lines: list[dict[str, Any]]) -> str:
    """Return the loss of the first step, which all variants share."""
    found = {f"{line['losses'][0]:.4f}" for line in lines}
    return "/".join(sorted(found))


def _predicted(lines: list[dict[str, Any]]) -> str:
    """Return the predicted seconds over the measured ones."""
    predicted = lines[0].get("predicted_s")
    if predicted is None:
        return ""
    return f"{predicted / statistics.median(map(_step_s, lines)):.3f}"
