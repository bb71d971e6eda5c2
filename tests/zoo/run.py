"""Capture, cut and verify every model of the zoo; ``make zoo`` prints the table."""

from __future__ import annotations

import argparse
import random
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.session import set_mode
from partitioner.capture.tree import flatten
from partitioner.cost import price, resolve
from partitioner.emit import Placement
from partitioner.graph import ModelGraph
from partitioner.verify import Verification, verify
from partitioner.verify.compare import error, least_scale
from partitioner.verify.inputs import input_tensors
from partitioner.verify.run import call_with, tensor_leaves
from tests.captured import rerun
from tests.zoo.cuts import Cutter
from tests.zoo.entry import Entry, noise
from tests.zoo.prices import price_faults
from tests.zoo.registry import ENTRIES, MISSING

__all__ = ["Row", "examine"]

LEAF = re.compile(r"^(\S+) runs as a whole: (.*) \((.*)\)$")
LARGEST_LEAF = 0.25
"""Share of the FLOPs that a module may hold that could not be recorded through."""
TOLERANCE = 1e-5


@dataclass(kw_only=True)
class Row:
    """What was measured on one entry, and every way in which it failed."""

    name: str
    nodes: int = 0
    whole: int = 0
    opened: int = 0
    leaves: dict[str, str] = field(default_factory=dict)
    leaf_share: float = 0.0
    capture_s: float = 0.0
    train_error: float = 0.0
    eval_error: float = 0.0
    bf16_error: float | None = None
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def see(self, found: Verification, what: str) -> None:
        """Note one verification in float32."""
        self.train_error = max(self.train_error, found.modes["train"].worst)
        self.eval_error = max(self.eval_error, found.modes["eval"].worst)
        if not found.ok:
            self.faults.append(f"{what}: {found}")


def examine(entry: Entry, *, bf16: bool = True) -> Row:
    """Capture, compare, cut and verify one entry; faults are listed, not raised."""
    started = time.perf_counter()
    row = Row(name=entry.name)
    rng = random.Random(zlib.crc32(entry.name.encode()))
    graph = _capture(entry, row)
    _check_leaves(entry, graph, row)
    _check_prices(entry, graph, row)
    for training in (True, False):
        _check_equal(entry, graph, row, training=training)
    cutter = Cutter(graph, rng)
    _check_cuts(entry, cutter, row)
    _check_sizes(entry, cutter, row)
    if bf16 and not entry.no_bf16:
        _check_bf16(entry, row, rng)
    row.seconds = time.perf_counter() - started
    return row


def built(entry: Entry) -> nn.Module:
    """Build the model of an entry; each time the same."""
    seed_all(0)
    return entry.build()


def seed_all(seed: int) -> None:
    """Seed every generator that a model might draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def example(entry: Entry, samples: int | None = None, length: int | None = None) -> Any:
    """Return one micro-batch for an entry."""
    return entry.inputs(samples or entry.samples, length or entry.length or 0)


# -- capture --------------------------------------------------------------------------


def _capture(entry: Entry, row: Row) -> ModelGraph:
    model, inputs = built(entry), example(entry)
    started = time.perf_counter()
    graph = capture(model, inputs)
    row.capture_s = time.perf_counter() - started
    row.nodes = len(graph.graph.nodes)
    row.opened = sum(bool(span.opened_because) for span in graph.spans)
    row.whole = len(graph.spans) - row.opened
    return graph


def found_leaves(graph: ModelGraph) -> dict[str, str]:
    """Return path → reason of every module that could not be recorded through."""
    matches = filter(None, map(LEAF.match, graph.assumptions))
    return {match[1]: match[2] for match in matches}


def _check_leaves(entry: Entry, graph: ModelGraph, row: Row) -> None:
    row.leaves = found_leaves(graph)
    if set(row.leaves) != set(entry.leaves):
        row.faults.append(f"leaves are {row.leaves}, not {dict(entry.leaves)}")
    for path, reason in row.leaves.items():
        if entry.leaves.get(path, "") not in reason:
            row.faults.append(f"leaf {path}: {reason!r} is not {entry.leaves[path]!r}")
    if row.leaves:
        row.leaf_share = _largest_share(graph, row.leaves)
        if row.leaf_share > LARGEST_LEAF and not entry.heavy_leaf:
            row.faults.append(f"a leaf holds {row.leaf_share:.0%} of the FLOPs")


def _largest_share(graph: ModelGraph, leaves: dict[str, str]) -> float:
    costed = price(graph, profile=resolve("cpu"))
    flops = dict.fromkeys(leaves, 0)
    for node, cost in costed.costs.items():
        if node.op == "call_module" and node.target in leaves:
            flops[str(node.target)] += cost.forward_flops
    return max(flops.values()) / max(costed.total.forward_flops, 1)


def _check_prices(entry: Entry, graph: ModelGraph, row: Row) -> None:
    model = built(entry)
    _no_caches(model)
    row.faults += price_faults(entry.name, graph, model)


# -- captured equals original ---------------------------------------------------------


def _check_equal(entry: Entry, graph: ModelGraph, row: Row, *, training: bool) -> None:
    """Compare the nodes, run one by one, with the model: bit-equal, gradients too."""
    where = "train" if training else "eval"
    tensors = input_tensors(graph, None)
    args, kwargs = call_with(graph, [tensor.clone() for tensor in tensors])
    original, copy = built(entry), built(entry)
    for model in (original, copy):
        set_mode(model, training=training)
        _no_caches(model)
    seed_all(1)
    expected = original(*args, **kwargs)
    seed_all(1)
    found = rerun(graph, copy, [tensor.clone() for tensor in tensors])
    if type(expected) is not type(found) or structure(expected) != structure(found):
        text = f"{structure(found)}, not {structure(expected)}"
        row.faults.append(f"{where}: the output is {text}")
    pairs = list(zip(tensor_leaves(expected), tensor_leaves(found), strict=False))
    row.faults += [
        f"{where}: output {number} of the recorded graph is off by {distance(a, b)}"
        for number, (a, b) in enumerate(pairs)
        if not same(a, b)
    ]
    _backward([a for a, _ in pairs])
    _backward([b for _, b in pairs])
    row.faults += [f"{where}: {text}" for text in _state_faults(original, copy)]


def _no_caches(model: nn.Module) -> None:
    for module in model.modules():
        config: Any = module.__dict__.get("config")
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False


def structure(output: Any) -> list[Any]:
    """Return the paths and the values that are no tensors of an output."""
    return [
        (path, "tensor" if isinstance(leaf, Tensor) else leaf)
        for path, leaf in flatten(output)
    ]


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors have the same bits, NaN included."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(
        a.isnan(), b.isnan()
    )


def distance(a: Tensor | None, b: Tensor | None) -> str:
    """Say how far two tensors are apart."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return f"{_kind(a)} against {_kind(b)}"
    if not a.numel() or not a.is_floating_point():
        return "other values"
    return f"{(a - b).abs().max().item():.1e}"


def _kind(a: Tensor | None) -> str:
    return "None" if a is None else f"{a.dtype}{list(a.shape)}"


def _backward(outputs: Sequence[Tensor]) -> None:
    roots = [tensor for tensor in outputs if tensor.requires_grad]
    cotangents = [noise(*tensor.shape).to(tensor.dtype) for tensor in roots]
    if roots:
        torch.autograd.backward(roots, cotangents)


def _state_faults(original: nn.Module, copy: nn.Module) -> list[str]:
    gradients = {name: p.grad for name, p in copy.named_parameters()}
    buffers = dict(copy.named_buffers())
    least = least_scale(p.grad for p in original.parameters())
    return [
        f"gradient of {name} is off by {distance(p.grad, gradients[name])}"
        for name, p in original.named_parameters()
        if not close(p.grad, gradients[name], least)
    ] + [
        f"buffer {name} is off by {distance(buffer, buffers[name])}"
        for name, buffer in original.named_buffers()
        if not same(buffer, buffers[name])
    ]


def close(a: Tensor | None, b: Tensor | None, least: float) -> bool:
    """Whether two gradients differ by no more than the order of a sum.

    Args:
        a: The original's.
        b: The recorded graph's.
        least: Least scale that the difference is relative to.
    """
    if a is None or b is None:
        present = b if a is None else a
        return present is None or not present.any()
    return same(a, b) or error(a, b, least) <= TOLERANCE


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


# -- the table ------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Table:
    """Return the zoo as a table, one line for each model."""
    found = Table(title=f"{len(rows)} models", header_style="bold")
    for name in ("Model", "Nodes", "Modules whole/opened", "Leaves", "Capture s"):
        found.add_column(name)
    for name in ("Train error", "Eval error", "bf16 error", "All s"):
        found.add_column(name, justify="right")
    for row in rows:
        found.add_row(*_cells(row), style="red" if row.faults else None)
    return found


def _cells(row: Row) -> list[str]:
    leaves = "\n".join(f"{path}: {why}" for path, why in row.leaves.items())
    bf16 = "–" if row.bf16_error is None else f"{row.bf16_error:.0e}"
    return [
        row.name, str(row.nodes), f"{row.whole}/{row.opened}", leaves,
        f"{row.capture_s:.2f}", f"{row.train_error:.0e}", f"{row.eval_error:.0e}",
        bf16, f"{row.seconds:.1f}",
    ]  # fmt: skip


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
