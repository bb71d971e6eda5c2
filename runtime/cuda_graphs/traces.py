"""What a pass leaves behind in Python, which a replay would not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from partitioner.runtime.host_generators import HostGenerators, own_generators
from partitioner.runtime.python_state import CONTAINERS, refill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["Traces"]

_ABSENT = object()


class Traces:
    """The attributes of modules, and the host's generators, before a pass.

    Args:
        module: Watched with its submodules, but for its own attributes.
        on_host: Torch's generator of the host is the device's, and may be used.
    """

    def __init__(self, module: nn.Module, *, on_host: bool) -> None:
        own = [] if on_host else [torch.default_generator]
        self._generators = HostGenerators([*own_generators(module), *own])
        self._generators.save()
        seen: set[int] = set()
        self._before = [
            (place, container, container.copy())
            for path, part in module.named_modules()
            for place, container in _containers(path, vars(part), seen)
            if part is not module or container is part._buffers  # noqa: SLF001 - where torch looks
        ]

    def undo(self) -> str:
        """Undo what has changed, and name it; empty: nothing."""
        found: list[str] = []
        for path, container, before in self._before:
            names = list(_differences(path, container, before))
            if names:
                refill(container, before)
                found += names
        if self._generators.moved():
            self._generators.go_back()
            found.append("a random generator of the host")
        return ", ".join(found)


def _containers(path: str, container: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Walk through a container and those inside it, but through no other objects."""
    if id(container) in seen:
        return
    seen.add(id(container))
    yield path, container
    named = container.items() if isinstance(container, dict) else enumerate(container)
    for name, item in named:
        if type(item) in CONTAINERS:
            yield from _containers(_joined(path, name), item, seen)


def _differences(path: str, now: Any, before: Any) -> Iterator[str]:
    """Name what is another object now; equal ones are not the same."""
    if not isinstance(now, dict):
        if Counter(map(id, now)) != Counter(map(id, before)):
            yield path
        return
    for name in {**before, **now}:
        if now.get(name, _ABSENT) is not before.get(name, _ABSENT):
            yield _joined(path, name)


def _joined(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
