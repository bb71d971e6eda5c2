"""Record module calls: a leaf as one call, any other as a span of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.ambient import function_modes
from partitioner.capture.call_writer import NEEDS_VALUES
from partitioner.capture.counters import set_attributes
from partitioner.capture.forced import EXTREMES, ForcedDraws
from partitioner.capture.frames import Frame, forward_source, user_source
from partitioner.capture.functions import tensors_in
from partitioner.capture.idle import CountersChanged
from partitioner.capture.leaves import Known, is_leaf, run_for_real, why_whole
from partitioner.capture.modes import (
    current_region,
    generator_marks,
    restored_generators,
)
from partitioner.capture.operations import OperationRecorder
from partitioner.capture.records import Call, SpanRecord
from partitioner.capture.refusals import LeafNeeded, first_line, opaque_encoded
from partitioner.capture.tracked import plain
from partitioner.capture.tree import Opaque, is_plain, template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

__all__ = ["ModuleRecorder"]

Run = Callable[[Any, Any], Any]

SWAP_HINT = (
    "call the operation (torch.nn.functional.linear) on the tensor instead of the "
    "module, or do it in a submodule of its own"
)


class ModuleRecorder(OperationRecorder):
    """Records torch functions and module calls of one forward.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        leaves: Paths of modules that must not be recorded through.
    """

    idle_counters: frozenset[str] = frozenset()
    """Attributes that the forward may change, since it does nothing by them."""

    def call_module(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Record a module call: as one call for a leaf, as a span otherwise."""
        path = self.paths.get(id(module))
        if self.silent or path is None or (path == "" and len(self.frames) == 1):
            return original(module, *args, **kwargs)
        self._check_modes()
        self._check_counters(module, path)
        number = self.calls_of.get(path, 0)
        self.calls_of[path] = number + 1

        frame = Frame(path, number, None)

        def run(args: Any, kwargs: Any) -> Any:
            return original(module, *args, **kwargs)

        if path in self.leaves or is_leaf(module):
            return self._call_leaf(run, module, frame, args, kwargs)
        if reason := why_whole(module):
            raise LeafNeeded(path, reason, forward_source(module))
        return self._call_span(run, module, frame, args, kwargs)

    def _check_modes(self) -> None:
        self._check_ambient()
        if self.modes and function_modes() != self.modes:
            raise self._changes("function modes (a default device)")

    def _check_counters(self, module: nn.Module, path: str) -> None:
        """Refuse plain attributes below ``module`` that a forward has changed."""
        below = self.counters.changed(module)
        changed = {f"{path}.{name}" if path else name: None for name in below}
        names = [name for name in changed if name not in self.idle_counters]
        if names:
            raise CountersChanged(self.frames[-1].path, names, user_source())

    def _call_leaf(
        self, run: Run, module: nn.Module, frame: Frame, args: Any, kwargs: Any
    ) -> Any:
        args, kwargs = plain((args, kwargs))
        identity = f"{frame.path}@{frame.call}"
        call = Call(
            id=identity,
            draw_key=identity,
            kind="module",
            target=frame.path,
            args=self._encode(args),
            kwargs=self._encode(kwargs),
            module=frame.path,
            source=user_source(),
            region=current_region(),
        )
        self._check_opaque(frame.path, call)
        swapped = self.registered.swapped(module)
        if swapped:
            reason = f"it calls {frame.path} with another tensor as its {swapped}"
            raise self._leaf_needed(reason, SWAP_HINT)
        buffers = dict(module.named_buffers())

        def run_leaf() -> Any:
            if frame.path in self.leaves:  # torch.nn's own draw from torch alone
                with restored_generators() as drawn:
                    out = self._fake_or_real(run, module, args, kwargs)
                call.draws |= drawn[0]
            else:
                out = self._fake_or_real(run, module, args, kwargs)
            self.written |= self._replaced(module, buffers)
            self.registered.accept_buffers(module)
            if self.counters.changed(module):
                self.recording.counting.add(frame.path)
            self.counters.accept(module)
            return out

        given = tensors_in((args, kwargs))
        if frame.path in self.leaves:
            self._check_asked(given)
        out = self._run(call, run_leaf, [*given, *buffers.values()], frame.path)
        self.asked.follow(given, out)
        return out

    def _fake_or_real(self, run: Run, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a leaf on fakes, or on random numbers if fakes cannot run it."""
        try:
            if self.paths[id(module)] not in self.leaves:
                return run(args, kwargs)
            return self._at_extremes(lambda: run(args, kwargs))
        except Exception as error:
            if not self._may_be_odd(module, error):
                raise
            known = Known(self.values.fakes.mode, self.examples)
            if self.current is not None:
                self.current.saved = {}
            found = run_for_real(
                known,
                module,
                run,
                (args, kwargs),
                on_write=self._on_write,
                on_saved=self._on_saved,
            )
            if found is None:
                raise
            self.recording.notes.append(
                f"{self.paths[id(module)]} was run on random numbers to learn what it "
                f"returns: {first_line(error)}"
            )
            out, varies = found
            if varies:
                self._note_drawn(self.paths[id(module)])
            return out

    def _at_extremes(self, run: Callable[[], Any]) -> Any:
        """Run a leaf; one that draws which layers run, so that it keeps most."""
        with ForcedDraws(EXTREMES[0]) as high:
            out = run()
        call = self.current
        if not high.used or call is None:
            return out
        saved, call.saved = call.saved, {}
        with ForcedDraws(EXTREMES[1]):
            other = run()
        kept_bytes = [sum(kept.values()) for kept in (saved, call.saved)]
        if kept_bytes[0] != kept_bytes[1]:
            self._note_drawn(call.module)
        if kept_bytes[1] > kept_bytes[0]:
            return other
        call.saved = saved
        return out

    def _note_drawn(self, path: str) -> None:
        self.recording.notes.append(
            f"{path} draws what it runs (layers that are left out by chance): it is "
            "priced by the draw that runs most"
        )

    def _may_be_odd(self, module: nn.Module, error: Exception) -> bool:
        """Whether it may be the fakes' fault that a leaf failed."""
        odd = (*NEEDS_VALUES, NotImplementedError, RuntimeError)
        return self.paths[id(module)] in self.leaves or isinstance(error, odd)

    def _replaced(
        self, module: nn.Module, before: Mapping[str, torch.Tensor]
    ) -> set[int]:
        """Return the storages of buffers that were replaced by new tensors."""
        after = dict(module.named_buffers())
        return {
            self.values.storage_of(tensor)
            for name, tensor in before.items()
            if after.get(name) is not tensor
        }

    def _call_span(
        self, run: Run, module: nn.Module, frame: Frame, args: Any, kwargs: Any
    ) -> Any:
        args_, kwargs_ = self._encode(plain((tuple(args), dict(kwargs))))
        opened_because = opaque_encoded((args_, kwargs_))
        swapped = self.registered.swapped(module)
        if swapped:
            opened_because = f"it is called with another tensor as its {swapped}"
        span = SpanRecord(
            path=frame.path,
            call=frame.call,
            # Encoding may have appended weights and constants: they are outside.
            start=len(self.recording.calls),
            end=-1,
            args=args_,
            kwargs=kwargs_,
            output=None,
            region=current_region(),
            parent=self.frames[-1].span,
            opened_because=opened_because,
        )
        frame.span = len(self.recording.spans)
        self.recording.spans.append(span)
        self.frames.append(frame)
        out = self._run_through(lambda: run(args, kwargs), module)
        span.output = template(out, self._output_leaf)
        self.frames.pop()
        span.end = len(self.recording.calls)
        return out

    def _run_through(self, run: Callable[[], Any], module: nn.Module) -> Any:
        """Run a module's forward, and look for effects that no operation shows."""
        marks = generator_marks()
        buffers = dict(module.named_buffers(recurse=False))
        attributes = dict(module.__dict__)
        out = run()
        self._check_asked(tensors_in(out))
        path, source = self.frames[-1].path, forward_source(module)
        self._check_modes()
        if marks != generator_marks():
            reason = "it draws from numpy's or Python's generator"
            hint = "draw with torch (torch.rand), or do it in a submodule of its own"
            raise LeafNeeded(path, reason, source, hint)
        for name, tensor in buffers.items():
            if module._buffers.get(name) is not tensor:  # noqa: SLF001 - nn.Module's own table
                reason = f"it replaces its buffer {name!r} by a new tensor"
                raise LeafNeeded(path, reason, source, "write it in place (copy_)")
        self._check_counters(module, path)
        changed = self._unrecorded(set_attributes, attributes, module.__dict__)
        if changed:
            self.recording.notes.append(
                f"{path or 'the root'} changes {', '.join(changed)} in its forward "
                f"({source}): what a later forward reads there is fixed, unless the "
                "module runs whole"
            )
        return out

    def _output_leaf(self, value: Any) -> Any:
        value = plain(value)
        if isinstance(value, torch.Tensor):
            return self._encode(value)
        return value if is_plain(value) else Opaque(value)

    def _on_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        self._unrecorded(self.values.save, tensor, self.current)
        return tensor

    def _on_write(self, tensor: torch.Tensor) -> None:
        if self.current is not None:
            self.written.add(self.values.storage_of(tensor))
