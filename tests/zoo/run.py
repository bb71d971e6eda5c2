"""Capture, cut and verify every model of the zoo; ``make zoo`` prints the table."""

from __future__ import annotations

import argparse
import random
import time
import zlib
from collections.abc import Sequence

import torch
from rich.console import Console
from torch import Tensor

from partitioner.capture import capture
from partitioner.cost import price, resolve
from partitioner.costed import CostedGraph
from partitioner.emit import Placement
from partitioner.graph import ModelGraph
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.zoo.cuts import Cutter
from tests.zoo.entry import Entry, built, example, no_caches
from tests.zoo.equal import recording_faults
from tests.zoo.leaves import found_leaves, leaf_faults, shares
from tests.zoo.prices import price_faults
from tests.zoo.registry import ENTRIES, MISSING
from tests.zoo.table import Row, table

__all__ = ["examine"]


def examine(entry: Entry, *, bf16: bool = True) -> Row:
    """Capture, compare, cut and verify one entry; faults are listed, not raised."""
    started = time.perf_counter()
    row = Row(name=entry.name)
    rng = random.Random(zlib.crc32(entry.name.encode()))
    graph = _capture(entry, row)
    _check_prices(entry, price(graph, profile=resolve("cpu")), row)
    for training in (True, False):
        row.faults += recording_faults(entry, graph, training=training)
    cutter = Cutter(graph, rng)
    _check_cuts(entry, cutter, row)
    _check_sizes(entry, cutter, row)
    if bf16 and not entry.no_bf16:
        _check_bf16(entry, row, rng)
    row.seconds = time.perf_counter() - started
    return row


# -- capture --------------------------------------------------------------------------


def _capture(entry: Entry, row: Row) -> ModelGraph:
    model, inputs = built(entry), example(entry)
    started = time.perf_counter()
    graph = capture(model, inputs)
    row.capture_s = time.perf_counter() - started
    row.nodes = len(graph.graph.nodes)
    row.opened = sum(bool(span.opened_because) for span in graph.spans)
    row.whole = len(graph.spans) - row.opened
    row.leaves = found_leaves(graph)
    return graph


def _check_prices(entry: Entry, costed: CostedGraph, row: Row) -> None:
    row.leaf_shares = shares(costed, row.leaves)
    row.faults += leaf_faults(entry, row.leaves, row.leaf_shares)
    model = built(entry)
    no_caches(model)
    row.faults += price_faults(entry.name, costed, model)


# -- cuts -----------------------------------------------------------------------------


def _check_cuts(entry: Entry, cutter: Cutter, row: Row) -> None:
    tensors = input_tensors(cutter.graph, None)
    found = list(cutter.cuts())
    if entry.through:
        through = cutter.through(entry.through)
        if through is None:
            row.faults.append(f"no cuts go through {entry.through}")
        else:
            found.append((f"through {entry.through}", through))
    found.append(("recomputed", cutter.recomputed()))
    for what, placement in found:
        _verify(cutter.graph, placement, tensors, row, what)


def _verify(
    graph: ModelGraph,
    placement: Placement,
    tensors: Sequence[Tensor],
    row: Row,
    what: str,
) -> None:
    try:
        row.see(verify(graph, placement, tensors), what)
    except Exception as error:
        row.faults.append(f"{what}: {type(error).__name__}: {error}")


def _check_sizes(entry: Entry, cutter: Cutter, row: Row) -> None:
    """Run a cut model at a second batch size and at a second length."""
    batch = entry.samples + 1
    shorter = entry.other_length or (entry.length or 0) * 2 // 3
    length = entry.length if entry.fixed_length else shorter
    for reason in filter(None, (entry.fixed_batch, entry.fixed_length)):
        _check_fixed(cutter.graph, reason, row)
    if not entry.fixed_batch:
        _verify_at((batch, entry.length), cutter.whole(), entry, cutter, row)
    if length != entry.length:
        samples = entry.samples if entry.fixed_batch else batch
        _verify_at((samples, length), cutter.node_by_node(), entry, cutter, row)


def _verify_at(
    sizes: tuple[int, int | None],
    placement: Placement,
    entry: Entry,
    cutter: Cutter,
    row: Row,
) -> None:
    tensors = input_tensors(cutter.graph, example(entry, *sizes))
    _verify(cutter.graph, placement, tensors, row, f"other sizes {sizes}")


def _check_fixed(graph: ModelGraph, reason: str, row: Row) -> None:
    notes = [note for note in graph.assumptions if note.startswith("fixed: ")]
    if not any(reason in note for note in notes):
        row.faults.append(f"no note says {reason!r}: {notes}")


def _check_bf16(entry: Entry, row: Row, rng: random.Random) -> None:
    try:
        graph = capture(built(entry), example(entry), dtype=torch.bfloat16)
        cutter = Cutter(graph, rng)
        cut = tuple(sorted(rng.sample(cutter.places, min(2, len(cutter.places)))))
        found = verify(graph, cutter.placement(cut), input_tensors(graph, None))
    except Exception as error:
        row.faults.append(f"bfloat16: {type(error).__name__}: {error}")
        return
    row.bf16_error = max(mode.worst for mode in found.modes.values())
    if not found.ok:
        row.faults.append(f"bfloat16 at {cut}: {found}")


# -- all entries ---------------------------------------------------------------------


def _examined(entry: Entry) -> Row:
    """Examine one entry; what it raises is one more fault, so that others follow."""
    try:
        return examine(entry)
    except Exception as error:
        return Row(name=entry.name, faults=[f"{type(error).__name__}: {error}"])


def main() -> int:
    """Examine every model, or those whose names hold a word; 1 if one failed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    chosen = [
        entry
        for name, entry in ENTRIES.items()
        if not words or any(word in name for word in words)
    ]
    console = Console()
    rows = []
    for entry in chosen:
        rows.append(_examined(entry))
        for fault in rows[-1].faults:
            console.print(f"{entry.name}: {fault}", style="red", markup=False)
    console.print(table(rows))
    for missing in MISSING:
        console.print(f"left out: {missing.name}: {missing.reason}")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
