"""Keep recomputation from happening twice: buffers, numbers and host generators.

``torch.utils.checkpoint`` runs a segment again during backward and restores
torch's own generators. It does not restore buffers, so that batch statistics and
counters would advance twice and a segment which reads what it wrote (spectral
norm's vectors) would recompute something else than it computed; nor the
generators of ``random`` and numpy, nor those that a module keeps, nor what it
counts in Python.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.runtime.host_generators import HostGenerators, own_generators
from partitioner.runtime.python_state import PythonState, Values, present, restore

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Recomputation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """A buffer as it was: the object, its values and its version counter."""

    owner: nn.Module
    name: str
    tensor: Tensor
    values: Tensor
    version: int

    @property
    def key(self) -> tuple[int, str]:
        """What tells the buffer from others, whatever is registered there."""
        return id(self.owner), self.name

    def now(self) -> Tensor:
        """Return the tensor that is registered under the name now."""
        tensor: Tensor = getattr(self.owner, self.name)
        return tensor

    def moved(self) -> bool:
        """Say whether the buffer was replaced or written by a counted operation."""
        tensor = self.now()
        return tensor is not self.tensor or tensor._version != self.version  # noqa: SLF001 - torch has no public name

    def restore(self) -> None:
        """Put the object and its values back.

        Through ``.data``: the version counter stays, since for autograd the
        values that other micro-batches saved have not changed.
        """
        if self.now() is not self.tensor:
            setattr(self.owner, self.name, self.tensor)
        self.tensor.data.copy_(self.values)


class Recomputation:
    """What one checkpointed segment needs to recompute exactly what it computed.

    Which buffers a forward writes is learned by watching it: batch norm's
    kernels write their statistics without moving the version counter, so the
    first forward compares values, and later ones trust that and the counters.

    Args:
        module: The segment whose buffers and Python numbers are guarded.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._written: set[tuple[int, str]] = set()
        self._modes: tuple[bool, ...] | None = None
        self._python = PythonState(module)

    @property
    def writes_buffers(self) -> bool:
        """Whether a forward so far has written buffers."""
        return bool(self._written)

    def context_fn(
        self,
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of one forward and of its recomputations."""
        host = HostGenerators(own_generators(self._module))
        run = _Run(self._module, host, self._python)
        return self._forward(run), _Recompute(run)

    @contextmanager
    def _forward(self, run: _Run) -> Iterator[None]:
        run.start()
        yield
        modes = tuple(module.training for module in self._module.modules())
        compare, self._modes = modes != self._modes, modes
        for snapshot in run.taken:
            if snapshot.moved() or (compare and not _same(snapshot)):
                self._written.add(snapshot.key)
        run.end(self._written)


class _Run:
    """One forward of a segment: what it needs to run once more.

    Args:
        module: The segment.
        host: Its generators.
        python: Knows its Python numbers.
    """

    def __init__(
        self, module: nn.Module, host: HostGenerators, python: PythonState
    ) -> None:
        self._module, self._host, self._python = module, host, python
        self.taken: list[_Snapshot] = []
        self._numbers: Values = {}
        self._ended = False

    def start(self) -> None:
        """Remember what a forward begins with."""
        self._host.save()
        self.taken = _snapshots(self._module)
        self._numbers = self._python.taken()

    def end(self, written: set[tuple[int, str]]) -> None:
        """Forget the buffers that the forward did not write."""
        self.taken = [snapshot for snapshot in self.taken if snapshot.key in written]
        changed = self._python.changed(self._numbers)
        self._python.learn(self._numbers)
        self._numbers = changed
        self._ended = True

    @contextmanager
    def again(self) -> Iterator[None]:
        """Run from the same state as the forward, and leave no trace.

        While the forward has not ended (a module in it computes gradients), what it
        has written so far is told by comparing.
        """
        before, numbers = self.taken, self._numbers
        if not self._ended:
            before = [s for s in before if s.moved() or not _same(s)]
            numbers = self._python.changed(numbers)
        counted = present(numbers)
        now = [_snapshot(snapshot.owner, snapshot.name) for snapshot in before]
        for snapshot in before:
            snapshot.restore()
        restore(numbers)
        try:
            with self._host.replay():
                yield
        finally:
            for snapshot in now:
                snapshot.restore()
            restore(counted)


class _Recompute(AbstractContextManager[None]):
    """The context of every recomputation of one forward.

    Torch enters it for each backward through the segment: also for one that runs in
    the middle of the forward, and again inside its recomputation.

    Args:
        run: The forward.
    """

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = self._run.again()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


def _snapshots(module: nn.Module) -> list[_Snapshot]:
    return [
        _snapshot(owner, name)
        for owner in module.modules()
        for name, _ in owner.named_buffers(recurse=False)
    ]


def _snapshot(owner: nn.Module, name: str) -> _Snapshot:
    tensor: Tensor = getattr(owner, name)
    return _Snapshot(
        owner=owner,
        name=name,
        tensor=tensor,
        values=tensor.detach().clone(),
        version=tensor._version,  # noqa: SLF001 - torch has no public name
    )


def _same(snapshot: _Snapshot) -> bool:
    now = snapshot.now()
    return now.shape == snapshot.values.shape and _equal_bits(now, snapshot.values)


def _equal_bits(left: Tensor, right: Tensor) -> bool:
    pair = [tensor.detach().contiguous().reshape(-1) for tensor in (left, right)]
    return torch.equal(*(tensor.view(torch.uint8) for tensor in pair))
