"""ModelGraph → Measurements: each distinct operation and block is timed once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from partitioner.cost.blocks import block_spans
from partitioner.cost.measure.calls import Calls
from partitioner.cost.measure.store import Store, device_here, device_name
from partitioner.cost.measure.timing import Timer
from partitioner.cost.measure.values import Values
from partitioner.cost.measurements import Measurements, Timing
from partitioner.cost.profiles import resolve
from partitioner.cost.work import Work

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from torch import fx

    from partitioner.graph import ModelGraph, Span

__all__ = ["measure"]

_T = TypeVar("_T")


def measure(
    graph: ModelGraph,
    *,
    device: str | torch.device | None = None,
    compiled: bool = False,
    cache_folder: str | os.PathLike[str] | None = None,
) -> Measurements:
    """Time a model's distinct operations and repeated modules on this machine.

    Operations run alone, with a cold cache; repeated modules run as a whole, as a
    stage will run them, and once more operation by operation. What is timed is the
    device; of repeated modules the host is timed as well. What the cache on disk
    knows is not timed again. The user's model is not touched: a copy of one module at
    a time, with random weights, is what runs.

    Args:
        graph: The recorded model.
        device: Where to run; None: the GPU that is present, else the CPU.
        compiled: Repeated modules run under ``torch.compile``.
        cache_folder: Where timings are kept between runs; None: the user's cache.

    Returns:
        The timings by signature, and why something could not be timed.

    Raises:
        OptionError: No profile is known for the device.
        PartitionerError: The cache cannot be written.
    """
    place = device_here(device)
    store = Store(place, compiled=compiled, folder=cache_folder)
    known = store.load() or Measurements(
        profile=resolve("cpu" if place.type == "cpu" else "cuda"),
        device_name=device_name(place),
        torch_version=torch.__version__,
        compiled=compiled,
    )
    found = _Session(graph, place, known).run()
    store.save(found)
    return found


class _Session:
    """Times what ``known`` lacks."""

    def __init__(
        self, graph: ModelGraph, place: torch.device, known: Measurements
    ) -> None:
        self._graph = graph
        self._known = known
        self._work = Work(graph, compiled=known.compiled)
        self._calls = Calls(graph, Values(graph, place), place)
        self._timer = Timer(place)
        self._failed: dict[str, str] = {}

    def run(self) -> Measurements:
        nodes = _missing(self._graph.graph.nodes, self._work.of_node, self._known.nodes)
        whole = [s for s in block_spans(self._graph) if not s.opened_because]
        spans = _missing(whole, self._work.of_block, self._known.blocks)
        timed_nodes = self._timed(nodes, self._node, "operations")
        timed_blocks = self._timed(spans, self._block, "blocks")
        return replace(
            self._known,
            nodes={**self._known.nodes, **timed_nodes},
            blocks={**self._known.blocks, **timed_blocks},
            failed={**self._known.failed, **self._failed},
        )

    def _timed(
        self, items: Mapping[str, _T], time: Callable[[_T], Timing], what: str
    ) -> dict[str, Timing]:
        console = Console(stderr=True)
        shown = track(
            items.items(),
            description=f"measuring {what}",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        tried = ((signature, self._try(signature, time, x)) for signature, x in shown)
        return {signature: timing for signature, timing in tried if timing}

    def _try(
        self, signature: str, time: Callable[[_T], Timing], item: _T
    ) -> Timing | None:
        try:
            return time(item)
        except Exception as error:  # a user's code, on random numbers
            first = next(iter(str(error).splitlines()), "")
            self._failed[signature] = f"{type(error).__name__}: {first}"
            return None

    def _node(self, node: fx.Node) -> Timing:
        return self._timer.time(self._calls.node(node), alone=True)

    def _block(self, span: Span) -> Timing:
        """Time a block whole, and how much longer it takes cut open."""
        compiled = self._known.compiled
        whole = self._timer.time(
            self._calls.block(span, compiled=compiled), alone=False
        )
        opened = self._timer.time(
            self._calls.opened(span, compiled=compiled), alone=False
        )
        longer = opened.forward_s + opened.backward_s
        longer -= whole.forward_s + whole.backward_s
        return replace(whole, opening_s=max(0.0, longer))


def _missing(
    items: Iterable[_T], sign: Callable[[_T], str], known: Mapping[str, Timing]
) -> dict[str, _T]:
    """Return the first item of each signature that is not known yet."""
    found: dict[str, _T] = {}
    for item in items:
        signature = sign(item)
        if signature and signature not in known:
            found.setdefault(signature, item)
    return found
