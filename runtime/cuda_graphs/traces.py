"""What a forward leaves behind in Python, which a replay would not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partitioner.runtime.python_state import PythonState, restore
from partitioner.runtime.recompute import HostGenerators, own_generators

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Traces"]


class Traces:
    """The attributes of modules, and the host's generators, before a forward.

    Args:
        module: Watched with its submodules, but for its own attributes.
        on_host: Torch's generator of the host is the device's, and may be used.
    """

    def __init__(self, module: nn.Module, *, on_host: bool) -> None:
        own = [] if on_host else [torch.default_generator]
        self._generators = HostGenerators([*own_generators(module), *own])
        self._generators.save()
        self._python = PythonState(module)
        self._numbers = self._python.taken()
        self._tables = [
            (path, table, dict(table))
            for path, part in module.named_modules()
            for table in (vars(part), part._buffers)  # noqa: SLF001 - where torch looks
            if part is not module or table is part._buffers  # noqa: SLF001
        ]

    def undo(self) -> str:
        """Undo what has changed, and name it; empty: nothing."""
        found = [self._put_back(*each) for each in self._tables]
        numbers = self._python.changed(self._numbers)
        restore(numbers)
        found += [f"{type(owner).__name__}.{name}" for owner, name in numbers]
        if self._generators.moved():
            self._generators.go_back()
            found.append("a random generator of the host")
        return ", ".join(filter(None, found))

    @staticmethod
    def _put_back(path: str, table: dict[str, Any], before: dict[str, Any]) -> str:
        names = [
            name
            for name in {**before, **table}
            if table.get(name) is not before.get(name)
        ]
        if names:
            table.clear()
            table.update(before)
        return ", ".join(f"{path}.{name}" if path else name for name in names)
