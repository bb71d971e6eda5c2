"""Write down every torch function that runs, with what it reads, makes and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.call_writer import CallWriter
from partitioner.capture.draws import Range, drawn_range, is_decided
from partitioner.capture.frames import user_source
from partitioner.capture.functions import (
    QUERIES,
    READS,
    SIDE_EFFECTS,
    as_target,
    custom_function,
    function_name,
    on_fakes,
    tensors_in,
)
from partitioner.capture.size_log import PIECES, SIZE_QUERIES
from partitioner.capture.tracked import plain
from partitioner.capture.values import is_fake, version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OperationRecorder"]

GRADIENTS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
"""Functions that walk the graph of what was computed before, unseen by a cut."""

DEVICE_QUERIES = frozenset(("__get__is_cpu", "__get__is_cuda", "get_device"))
"""Queries that tell the kind of device."""


class OperationRecorder(CallWriter):
    """Records the torch functions of one forward.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        leaves: Paths of modules that must not be recorded through.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; write it down if it makes, changes or draws anything."""
        kwargs = kwargs or {}
        if self.silent:
            return self._inside_leaf(func, args, kwargs)
        given = (args, kwargs)
        args, kwargs = plain(given)
        name = function_name(func)
        tensors = tensors_in((args, kwargs))
        self._check_read(name, args, tensors)
        if self.asked.are_seen(name, tensors):
            self._check_asked(tensors)
        if name in QUERIES:
            found = func(*args, **kwargs)
            return self._followed(name, (*args, *kwargs.values()), found)
        if self.asked.leaves_out(name, args):
            self._note_asked()
            return None
        self._check_effect(name, func)
        kind, target, encoded = as_target(func, name, args)
        call = self._begin(kind, target, name, encoded, kwargs)
        if self._is_decided(name, args):
            self._note_decided(name, args)
            tensors = []  # the answer is no random number
        run = on_fakes(func, name)
        out = self._run(call, lambda: run(*args, **kwargs), tensors, name)
        self.asked.follow(tensors, out)
        if name in PIECES:
            self._note_pieces(name, given, len(out))
        if call.draws:
            self._note_range(out, drawn_range(name, args, kwargs))
        return out

    def _inside_leaf(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if func in GRADIENTS and self.current is not None:
            self.current.differentiates = True
        return func(*args, **kwargs)

    def module_path(self) -> str:
        """Return the path of the module call that is running."""
        return self.frames[-1].path

    def _followed(self, name: str, args: tuple[Any, ...], out: Any) -> Any:
        """Return sizes of recorded tensors as numbers that are followed."""
        if name in DEVICE_QUERIES:
            query = name.removeprefix("__get__")
            self.recording.device_reads.append(f"{query} is {out}, {user_source()}")
        if self.sizes is None or name not in SIZE_QUERIES or not args:
            return out
        ref = self.values.result_of(args[0])
        if ref is None:
            return out
        return self._unrecorded(self.sizes.follow, ref, name, args, out)

    def _note_pieces(self, name: str, given: Any, count: int) -> None:
        ref = self.values.result_of(given[0][0]) if given[0] else None
        if self.sizes is not None and ref is not None:
            self._unrecorded(self.sizes.pieces, ref, name, given, count)

    def _is_decided(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether this compares a random number with one that it never reaches."""
        known = self.ranges.get(id(args[0])) if args else None
        if known is None:
            return False
        tensor, count, drawn = known
        return version(tensor) == count and is_decided(name, drawn, *args[1:2])

    def _note_decided(self, name: str, args: tuple[Any, ...]) -> None:
        self.recording.notes.append(
            f"{self.frames[-1].path or 'the root'} compares a random number with "
            f"{args[1]} ({name.strip('_')}, {user_source()}): whatever it is, the "
            "answer is the same, so it is taken as fixed"
        )

    def _note_range(self, out: Any, drawn: Range | None) -> None:
        if drawn is not None and isinstance(out, torch.Tensor) and not is_fake(out):
            self.ranges[id(out)] = (out, version(out), drawn)

    def call_custom(
        self,
        cls: type,
        apply: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a custom autograd function as one operation: its backward counts."""
        if self.silent:
            return apply(*args, **kwargs)
        args, kwargs = plain((args, kwargs))
        name = cls.__name__
        tensors = tensors_in((args, kwargs))
        call = self._begin("function", custom_function(cls), name, args, kwargs)
        return self._run(call, lambda: apply(*args, **kwargs), tensors, name)

    def _check_read(
        self, name: str, args: tuple[Any, ...], tensors: list[torch.Tensor]
    ) -> None:
        formatted = name == "__format__" and args[1:] not in {(), ("",)}
        if name not in READS and not formatted:
            return
        if any(map(is_fake, tensors)):
            raise self._leaf_needed(
                f"Python reads the value of a tensor ({name.strip('_')})"
            )
        if self.values.is_random(tensors):
            raise self._uses_random(name)

    def _note_asked(self) -> None:
        self.recording.notes.append(
            f"{self.frames[-1].path or 'the root'} asks for the gradient of a value "
            f"({user_source()}): it reaches no weight, so it is left out"
        )

    def _check_asked(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse to hand on a value whose ``requires_grad`` was left out."""
        if self.asked.among(tensors):
            raise self._leaf_needed("a tensor's .requires_grad is assigned")

    def _check_effect(self, name: str, func: Callable[..., Any]) -> None:
        if func in GRADIENTS:
            raise self._leaf_needed(
                f"it computes gradients in its forward ({name})",
                "move that part, with all it differentiates, into a submodule of its "
                "own (it then runs as a whole)",
            )
        if name in SIDE_EFFECTS:
            raise self._leaf_needed(f"a tensor gets a hook ({name})")
        if name == "__reduce_ex__":
            reason = "a tensor is copied as a Python object (copy.copy or pickle)"
            raise self._leaf_needed(reason, "copy it with clone() or detach()")
        if name.startswith("__set__"):
            attribute = name.removeprefix("__set__")
            raise self._leaf_needed(f"a tensor's .{attribute} is assigned")
