"""Keep recomputation from happening twice: buffers, numbers and host generators.

``torch.utils.checkpoint`` runs a segment again during backward and restores
torch's own generators. It does not restore buffers, so that batch statistics and
counters would advance twice and a segment which reads what it wrote (spectral
norm's vectors) would recompute something else than it computed; nor the
generators of ``random`` and numpy, nor those that a module keeps, nor what it
counts in Python.
"""

from __future__ import annotations

import random
from collections import deque
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from partitioner.runtime.python_state import PythonState, Values, present, restore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HostGenerators", "Recomputation", "own_generators"]


def own_generators(module: nn.Module) -> list[torch.Generator]:
    """Return the generators that a module and its parts keep as attributes.

    Args:
        module: Searched with its submodules; of an attribute that is a container,
            the items are searched as well.
    """
    found: dict[int, torch.Generator] = {}
    for part in module.modules():
        for value in vars(part).values():
            items = value.values() if isinstance(value, dict) else value
            alone = not isinstance(value, dict | list | tuple | set | deque)
            for item in (value,) if alone else items:
                if isinstance(item, torch.Generator):
                    found[id(item)] = item
    return list(found.values())


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


class HostGenerators:
    """The states of ``random``, of numpy's global generator, and of modules' own."""

    def __init__(self, own: Sequence[torch.Generator]) -> None:
        self._own = own
        self._states: tuple[Any, ...] | None = None

    def save(self) -> None:
        """Remember the present states."""
        self._states = self._present()

    def moved(self) -> bool:
        """Whether the present states are others than those that were saved."""
        return bool(_bytes_of(self._present()) != _bytes_of(self._states))

    def go_back(self) -> None:
        """Return to the states that were saved."""
        self._set_states(self._states)

    def _present(self) -> tuple[Any, ...]:
        own = [generator.get_state() for generator in self._own]
        return random.getstate(), np.random.get_state(), own

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Go back to the states that were saved, and return to the present at exit."""
        present = self._present()
        try:
            self._set_states(self._states)
            yield
        finally:
            self._set_states(present)

    def _set_states(self, states: tuple[Any, ...] | None) -> None:
        if states is None:
            return
        random.setstate(states[0])
        np.random.set_state(states[1])
        for generator, state in zip(self._own, states[2], strict=True):
            generator.set_state(state)


def _bytes_of(states: Any) -> Any:
    """Return states of generators as what can be compared."""
    plain, (kind, keys, *rest), own = states
    return plain, (kind, keys.tobytes(), *rest), [bytes(each.numpy()) for each in own]


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
