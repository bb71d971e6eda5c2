"""Mark in a profile what belongs to which module, and which autograd nodes it made."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from deepspeed.runtime.pipe import schedule as deepspeed
from torch._C._autograd import _get_sequence_nr
from torch.jit import ScriptModule
from torch.profiler import record_function

from partitioner.runtime.instructions import (
    stage_of,
    watched_instructions,
    watched_recomputation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from partitioner.runtime.segment import Segment

__all__ = ["PUT_OFF", "Place", "Ranges"]

PUT_OFF = "(weight gradients put off)"
"""What stands for the modules whose weight gradients were made later."""


class Place(NamedTuple):
    """What a piece of time is for."""

    stage: int
    path: str
    """Of the user's module; empty: the stage, outside of its modules."""
    phase: str
    """``"forward"``, ``"backward"`` or ``"recompute"``."""

    def __str__(self) -> str:
        """Return the range's name in the profile."""
        return f"stage {self.stage} {self.phase}: {self.path or '(pass)'}"


class Ranges:
    """Puts a range around every pass and every call of a module, while installed.

    A backward is not called by module: the nodes of its graph are run. Each has the
    number that the graph's counter had when it was made in the forward, so it is
    enough to note the counter wherever a module begins or ends.

    Args:
        engine: A pipeline engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._stage = -1
        self._phase = ""
        self._open: list[tuple[Any, str]] = []
        self._numbers: list[int] = []
        self._made_by: list[Place | None] = []
        self.places: dict[str, Place] = {}
        """What every range is for, by name."""

    def made_by(self, number: int) -> Place | None:
        """Return what made the node of this number, to which its backward belongs."""
        index = bisect_right(self._numbers, number) - 1
        return self._made_by[index] if index >= 0 else None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Mark while this lasts."""
        with ExitStack() as stack:
            stack.enter_context(watched_instructions(self._engine, self._instruction))
            stack.enter_context(self._put_off())
            for layer in self._engine.module.local_layers():
                stack.enter_context(self._watched(layer))
            yield

    def _instruction(self, what: type, run: Callable[..., Any]) -> Callable[..., Any]:
        def marked(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not engine.module.training:
                return run(engine, *args, **kwargs)
            self._stage = stage_of(engine, kwargs.get("phase", 0))
            if what is deepspeed.ForwardPass:
                with self._passing("forward"), self._range(""):
                    return run(engine, *args, **kwargs)
            # Modules that are called in a backward are recomputed.
            with self._passing("recompute"):
                return run(engine, *args, **kwargs)

        passes = deepspeed.ForwardPass, deepspeed.BackwardPass
        return marked if what in passes else run

    @contextmanager
    def _passing(self, phase: str) -> Iterator[None]:
        self._phase = phase
        try:
            yield
        finally:
            self._phase = ""

    @contextmanager
    def _put_off(self) -> Iterator[None]:
        """Mark what ZB-H1 makes later, on an engine that has it."""
        make = getattr(self._engine, "_make", None)
        if make is None:
            yield
            return

        def marked(gradients: list[Any]) -> None:
            with self._named(Place(self._engine.stage_id, PUT_OFF, "backward")):
                make(gradients)

        self._engine._make = marked
        try:
            yield
        finally:
            del self._engine._make

    # -- modules

    @contextmanager
    def _watched(self, layer: Segment) -> Iterator[None]:
        handles: list[RemovableHandle] = []
        if not layer.is_compiled:
            called = {
                id(each): (inner, each)
                for path, module in layer.whole_modules.items()
                for inner, each in _called(path, module)
            }
            for inner, each in called.values():
                handles += self._hooked(inner, each)
        try:
            with watched_recomputation(layer, partial(self._range, "")):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooked(self, path: str, module: nn.Module) -> Iterator[RemovableHandle]:
        def begin(*_: Any) -> None:
            if self._phase:
                self._enter(path)

        def end(*_: Any) -> None:
            if self._open and self._open[-1][1] == path:
                self._leave()

        yield module.register_forward_pre_hook(begin)
        yield module.register_forward_hook(end, always_call=True)

    @contextmanager
    def _range(self, path: str) -> Iterator[None]:
        self._enter(path)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, path: str) -> None:
        place = Place(self._stage, path, self._phase)
        around = self._named(place)
        around.__enter__()
        self._open.append((around, path))
        self._switch(place)

    def _leave(self) -> None:
        around, _ = self._open.pop()
        around.__exit__(None, None, None)
        outer = self._open[-1][1] if self._open else None
        self._switch(None if outer is None else Place(self._stage, outer, self._phase))

    def _switch(self, place: Place | None) -> None:
        if self._phase == "forward":
            self._numbers.append(_get_sequence_nr())
            self._made_by.append(place and place._replace(phase="backward"))

    def _named(self, place: Place) -> record_function:
        name = str(place)
        self.places[name] = place
        return record_function(name)


def _called(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those inside whose calls Python sees, by original path."""
    yield path, module
    if isinstance(module, ScriptModule) or hasattr(module, "_orig_mod"):
        return  # they run compiled
    for name, child in module.named_children():
        yield from _called(f"{path}.{name}", child)
