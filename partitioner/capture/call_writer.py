"""Write down one call: its arguments as they were before, its results and writes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.overrides import TorchFunctionMode

from partitioner.capture.ambient import Ambient, ambient
from partitioner.capture.asked import AskedGradients
from partitioner.capture.checks import CHECK
from partitioner.capture.counters import Counters
from partitioner.capture.frames import Frame, user_source
from partitioner.capture.functions import (
    function_name,
    tensors_in,
)
from partitioner.capture.grouped import GROUPED, GroupedFakes
from partitioner.capture.modes import current_region
from partitioner.capture.records import Call, Recording, Ref
from partitioner.capture.refusals import LeafNeeded, first_line, opaque_encoded
from partitioner.capture.registered import RegisteredWeights
from partitioner.capture.tree import flatten, map_tree
from partitioner.capture.values import (
    UnknownTensorError,
    Values,
    alias,
    version,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from partitioner.capture.draws import Range
    from partitioner.capture.fakes import FakeWeights
    from partitioner.capture.size_log import SizeLog

__all__ = ["NEEDS_VALUES", "CallWriter"]

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class CallWriter(TorchFunctionMode):
    """Writes the calls of one forward down, with what each reads, makes and changes.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        leaves: Paths of modules that must not be recorded through.
    """

    def __init__(
        self, model: nn.Module, fakes: FakeWeights, leaves: frozenset[str]
    ) -> None:
        super().__init__()
        self.model = model
        self.leaves = leaves
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.recording = Recording(calls=[], spans=[], output=None)
        self.values = Values(model, fakes, self.recording)
        self.asked = AskedGradients(self.values)
        self.registered = RegisteredWeights(model)
        self.counters = Counters(model)
        self.calls_of: dict[str, int] = {}
        self.frames: list[Frame] = [Frame("", 0, None)]
        self.examples: dict[int, torch.Tensor] = {}
        """id of a fake input → the tensor that the user gave."""
        self.current: Call | None = None
        self.written: set[int] = set()  # storages that the current call wrote unseen
        self.ranges: dict[int, tuple[torch.Tensor, int, Range]] = {}
        """id of a drawn tensor → the tensor, its version, and where its numbers lie."""
        self.ambient: Ambient | None = None  # torch's state when the forward began
        self.modes = 0  # function modes that were on then
        self.needs_numbers = False  # the current call looked at a tensor's numbers
        self.silent = False  # inside a leaf, or at our own work
        self.sizes: SizeLog | None = None  # what Python does with sizes

    def add_input(self, tensor: torch.Tensor, name: str, example: torch.Tensor) -> None:
        """Register a fake input under ``name``, with the real one of the example."""
        self.examples[id(tensor)] = example
        call = Call(id=f"input:{name}", kind="input", target=name)
        self._unrecorded(self.values.append, call, tensor)

    def _unrecorded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call torch for our own purposes."""
        before, self.silent = self.silent, True
        try:
            return function(*args)
        finally:
            self.silent = before

    def _encode(self, tree: Any) -> Any:
        try:
            return self._unrecorded(self.values.encode, tree, self.frames[-1].path)
        except UnknownTensorError as error:
            raise self._leaf_needed(error.reason) from error

    def _leaf_needed(self, reason: str, hint: str = "") -> LeafNeeded:
        return LeafNeeded(self.frames[-1].path, reason, user_source(), hint)

    def _changes(self, what: str) -> LeafNeeded:
        return self._leaf_needed(
            f"it changes torch's {what} in its forward",
            "set it outside the model, or do it in a submodule of its own",
        )

    def _uses_random(self, name: str) -> LeafNeeded:
        return self._leaf_needed(
            f"Python uses the value of a random number ({name.strip('_')})"
        )

    def _check_ambient(self) -> None:
        """Refuse to record where a forward has changed what no node can hold."""
        if self.ambient is None:
            return
        changed = self.ambient.difference(ambient())
        if changed:
            raise self._changes(changed)

    def _begin(self, kind: Any, target: Any, name: str, args: Any, kwargs: Any) -> Call:
        """Return the call to be recorded, with arguments as they are before it."""
        self._check_ambient()
        frame = self.frames[-1]
        call = Call(
            id=frame.next_id(),
            draw_key=frame.draw_key(name),
            kind=kind,
            target=target,
            args=self._encode(args),
            kwargs=self._encode(kwargs),
            module=frame.path,
            source=user_source(),
            region=current_region(),
            checks=name == CHECK,
        )
        self._check_opaque(name, call)
        return call

    def _check_opaque(self, name: str, call: Call) -> None:
        opaque = opaque_encoded((call.args, call.kwargs))
        if opaque:
            raise self._leaf_needed(f"{name} is called with {opaque}")

    def _run(
        self,
        call: Call,
        function: Callable[[], Any],
        tensors: list[torch.Tensor],
        name: str,
    ) -> Any:
        """Run the operation of ``call`` and write it down, and nothing inside it."""
        before, self.silent = self.silent, True
        try:
            versions = [version(tensor) for tensor in tensors]
            out = self._executed(call, function, name)
            reads = self.needs_numbers and call.kind != "module"
            if reads and self.values.is_random(tensors):
                raise self._uses_random(name)
            changed = [
                tensor
                for tensor, count in zip(tensors, versions, strict=True)
                if version(tensor) != count
            ]
            return self._finish(call, out, changed, tensors)
        except UnknownTensorError as error:
            raise self._leaf_needed(error.reason) from error
        finally:
            self.silent = before

    def _executed(self, call: Call, function: Callable[[], Any], name: str) -> Any:
        self.current, self.written, self.needs_numbers = call, set(), False
        try:
            with GroupedFakes() if name in GROUPED else nullcontext():
                return function()
        except NEEDS_VALUES as error:
            raise self._leaf_needed(f"{name} needs the values of a tensor") from error
        except (NotImplementedError, RuntimeError) as error:
            if call.kind == "module" or not self.frames[-1].path:
                raise
            # Perhaps only fake tensors cannot do it: the module alone can tell.
            raise self._leaf_needed(f"{name} failed: {first_line(error)}") from error
        finally:
            self.current = None

    def _finish(
        self,
        call: Call,
        out: Any,
        changed: list[torch.Tensor],
        tensors: list[torch.Tensor],
    ) -> Any:
        """Append ``call`` if it had a tensor result or an effect; return its result."""
        has_result = bool(tensors_in(out))
        acts = changed or self.written or call.draws or call.checks
        if not (has_result or acts):
            self.frames[-1].operations -= call.kind != "module"
            return out
        storages = {self.values.storage_of(tensor) for tensor in changed}
        call.writes = tuple(sorted(storages | self.written))
        self.recording.calls.append(call)
        self._unrecorded(self.values.note_written, call.writes)
        if call.draws or self.values.is_random(tensors):
            for tensor in (*changed, *tensors_in(out)):
                self.values.taint(tensor)
        if has_result:
            written = {id(tensor) for tensor in changed}
            if self._is_asked_in_place(call):
                written |= {id(tensor) for tensor in tensors}
            out = self._note_results(call, out, written)
        return out

    def _is_asked_in_place(self, call: Call) -> bool:
        """Whether a call was asked to write its argument, and may not have done so.

        Dropout in eval mode: a later reader of the argument reads what it returned, as
        it does in train mode.
        """
        if call.kind == "module":
            module = self.model.get_submodule(str(call.target))
            return getattr(module, "inplace", False) is True
        if call.kwargs.get("inplace") is True:
            return True
        return callable(call.target) and function_name(call.target).endswith("dropout_")

    def _note_results(self, call: Call, out: Any, written: set[int]) -> Any:
        index = len(self.recording.calls) - 1
        out = map_tree(lambda value: self._distinct(value, written), out)
        for path, value in flatten(out):
            if isinstance(value, torch.Tensor):
                meta = self.values.meta_of(value)
                call.outputs.append((path, meta))
                self.values.know(value, Ref(index, path))
        return out

    def _distinct(self, value: Any, written: set[int]) -> Any:
        """Make a result that is one of the known tensors an object of its own.

        Functions that do nothing (dropout in eval mode, ``contiguous``) return their
        argument; a later reader of the argument must not become a reader of the
        function, since in the other mode they are two tensors.
        """
        if not isinstance(value, torch.Tensor) or id(value) in written:
            return value
        if self.values.is_known(value):
            return alias(value)
        return value
