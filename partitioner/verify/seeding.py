"""Give every random draw a seed of its own, the same in the original and the cut model.

A draw is named by the module call and the function that makes it, so that it draws
the same numbers wherever and whenever it runs.
"""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from partitioner.capture.frames import Frame
from partitioner.capture.functions import function_name
from partitioner.capture.modes import intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from partitioner.graph import ModelGraph

__all__ = ["Seeding"]


class Seeding(TorchFunctionMode):
    """Seeds before every function and leaf call, numbered as the recording did.

    Args:
        graph: The recorded model, which says what is a leaf and how often a module
            had been called before each recorded call.
    """

    def __init__(self, graph: ModelGraph) -> None:
        super().__init__()
        self.paths = {id(m): path for path, m in graph.model.named_modules()}
        self.leaves = {
            str(node.target) for node in graph.graph.nodes if node.op == "call_module"
        }
        self.first_calls = _first_calls(graph)
        self.counts: dict[str, int] = {}
        self.frames = [Frame("", 0, None)]
        self.in_leaf = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Seed for this call of this function, then run it."""
        if not self.in_leaf:
            seed(self.frames[-1].draw_key(function_name(func)))
        return func(*args, **(kwargs or {}))

    def call_module(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Follow a module call; seed a leaf."""
        path = self.paths.get(id(module))
        if self.in_leaf or not path:
            return original(module, *args, **kwargs)
        number = self.counts.get(path, 0)
        self.counts[path] = number + 1
        if path in self.leaves:
            return self.call_leaf(f"{path}@{number}", original, module, args, kwargs)
        self.frames.append(Frame(path, number, None))
        try:
            return original(module, *args, **kwargs)
        finally:
            self.frames.pop()

    def call_custom(
        self, cls: type, apply: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Seed a custom autograd function as a whole."""
        if self.in_leaf:
            return apply(*args, **kwargs)
        key = self.frames[-1].draw_key(cls.__name__)
        return self.call_leaf(key, _without_module(apply), None, args, kwargs)

    def call_leaf(
        self,
        key: str,
        function: Callable[..., Any],
        module: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Seed once and run without following what happens inside."""
        seed(key)
        self.in_leaf = True
        try:
            return function(module, *args, **kwargs)
        finally:
            self.in_leaf = False

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow a whole forward of the original model."""
        self.counts, self.frames = {}, [Frame("", 0, None)]
        with intercepted(self), self:
            yield

    def seeder(
        self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run one step of a segment: a single draw, or a whole module call."""
        first = self.first_calls.get(key)
        if first is None:
            seed(key)
            return function(*args, **kwargs)
        self.counts = dict(first)
        with intercepted(self), self:
            return function(*args, **kwargs)


def _without_module(apply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _module, *args, **kwargs: apply(*args, **kwargs)


def _first_calls(graph: ModelGraph) -> Mapping[str, dict[str, int]]:
    """Return for each module call the numbers its own and inner calls start with."""
    leaf_calls = [
        (node, str(node.target), int(node.meta["info"].id.rpartition("@")[2]))
        for node in graph.graph.nodes
        if node.op == "call_module"
    ]
    found: dict[str, dict[str, int]] = {}
    for span in graph.spans:
        counts = {span.path: span.call}
        inner = [
            (s.path, s.call) for s in graph.spans if s.nodes and s.nodes < span.nodes
        ]
        inner += [(path, call) for node, path, call in leaf_calls if node in span.nodes]
        for path, call in inner:
            counts[path] = min(call, counts.get(path, call))
        found[span.id] = counts
    return found


def seed(key: str) -> None:
    """Seed torch's, numpy's and Python's generators from a name."""
    number = int.from_bytes(
        hashlib.blake2b(key.encode(), digest_size=4).digest(), "big"
    )
    _seed_torch(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def _seed_torch(number: int) -> None:
    """Seed the generators of the CPU and of the devices in use.

    ``torch.manual_seed`` also queues the seed for every kind of device that nobody has
    touched, with a formatted stack trace each: milliseconds, for every operation.
    """
    torch.default_generator.manual_seed(number)
    device = torch.accelerator.current_accelerator()
    if device is None:
        return
    module = torch.get_device_module(device)
    if getattr(module, "is_initialized", lambda: True)():
        getattr(module, "manual_seed_all", module.manual_seed)(number)
