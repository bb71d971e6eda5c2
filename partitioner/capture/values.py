"""The tensors of one recording: which result each is, and what it looks like."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from partitioner.capture.frames import user_source
from partitioner.capture.records import Call, DeviceRef, Recording, Ref
from partitioner.capture.tree import map_tree
from partitioner.errors import DataDependentError
from partitioner.graph import TensorMeta
from partitioner.runtime.memory_order import unusual_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from partitioner.capture.fakes import FakeWeights

__all__ = ["UnknownTensorError", "Values", "alias", "is_fake", "version"]


class UnknownTensorError(Exception):
    """A tensor appeared that no recorded operation made, or without memory."""

    def __init__(
        self, reason: str = "a tensor appeared that no recorded operation made"
    ) -> None:
        super().__init__(reason)
        self.reason = reason


class Values:
    """Knows every tensor that a recording has met.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        recording: Where weights and constants are written down as they appear.
    """

    def __init__(
        self, model: nn.Module, fakes: FakeWeights, recording: Recording
    ) -> None:
        self.fakes = fakes
        self.recording = recording
        self._storages: dict[int, int] = {}
        self._refs: dict[int, Ref] = {}
        self._keep: list[Any] = []  # ids are only unique while the object lives
        self._in_storage: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self.random: set[int] = set()
        """Storages of real tensors that hold random numbers."""
        self.weight_storages = {
            self.storage_of(tensor): fakes.names[id(tensor)]
            for tensor in (*model.parameters(), *model.buffers())
        }

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Return a small number for the tensor's memory.

        Raises:
            UnknownTensorError: It has none of its own: sparse, nested, or under vmap.
        """
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError as error:
            raise UnknownTensorError(_without_memory(tensor)) from error
        key = storage._cdata  # noqa: SLF001 - data_ptr is 0 for every fake
        if key not in self._storages:
            self._storages[key] = len(self._storages)
            self._keep.append(storage)
        return self._storages[key]

    def meta_of(self, tensor: torch.Tensor) -> TensorMeta:
        """Return the facts kept about ``tensor``."""
        return TensorMeta(
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            requires_grad=tensor.requires_grad,
            storage=self.storage_of(tensor),
            order=unusual_order(tensor),
        )

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is a result, an input or a weight."""
        return id(tensor) in self._refs or id(tensor) in self.fakes.names

    def is_made_here(self, tensor: torch.Tensor) -> bool:
        """Whether an operation of the forward made ``tensor``, and no weight's view."""
        ref = self._refs.get(id(tensor))
        if ref is None or self.storage_of(tensor) in self.weight_storages:
            return False
        kinds = ("function", "method", "module")
        return self.recording.calls[ref.call].kind in kinds

    def result_of(self, tensor: Any) -> Ref | None:
        """Return the result that ``tensor`` is; None for weights and strangers."""
        ref = self._refs.get(id(tensor))
        if ref is None or self.recording.calls[ref.call].kind == "weight":
            return None
        return ref

    def know(self, tensor: torch.Tensor, ref: Ref) -> None:
        """Remember which result ``tensor`` is."""
        self._refs[id(tensor)] = ref
        self._in_storage[self.storage_of(tensor)].append(tensor)

    def note_written(self, storages: Iterable[int]) -> None:
        """Note which results need gradients now that their memory was written.

        A result is sent and kept as its last write leaves it.
        """
        tensors = (tensor for number in storages for tensor in self._in_storage[number])
        for tensor in filter(lambda tensor: tensor.requires_grad, tensors):
            ref = self._refs[id(tensor)]
            call = self.recording.calls[ref.call]
            call.outputs = [
                (path, replace(meta, requires_grad=True) if path == ref.path else meta)
                for path, meta in call.outputs
            ]

    def ref(self, tensor: torch.Tensor, module: str) -> Ref:
        """Return the result that ``tensor`` is; weights and constants appear here.

        Args:
            tensor: What an operation reads.
            module: Path of the module call that reads it.

        Raises:
            UnknownTensorError: Nothing that was recorded made it.
            DataDependentError: It is trainable, but registered nowhere.
        """
        known = self._refs.get(id(tensor))
        if known is not None:
            return known
        name = self.fakes.names.get(id(tensor))
        if name is not None:
            return self.append(Call(id=name, kind="weight", target=name), tensor)
        if is_fake(tensor):
            raise UnknownTensorError
        return self._add_constant(tensor, module)

    def _add_constant(self, tensor: torch.Tensor, module: str) -> Ref:
        if tensor.requires_grad:
            message = "the forward uses a trainable tensor that is not registered"
            raise DataDependentError(
                message,
                hint="make it an nn.Parameter of a registered module",
                module_path=module,
                source=user_source(),
            )
        number = sum(call.kind == "constant" for call in self.recording.calls)
        call = Call(
            id=f"constant:{number}",
            kind="constant",
            target=f"_constants.{number}",
            tensor=tensor,
            module=module,
            source=user_source(),
        )
        return self.append(call, tensor)

    def append(self, call: Call, tensor: torch.Tensor) -> Ref:
        """Write down a call whose only result is ``tensor``."""
        call.outputs = [((), self.meta_of(tensor))]
        self.recording.calls.append(call)
        ref = Ref(len(self.recording.calls) - 1)
        self.know(tensor, ref)
        return ref

    def encode(self, tree: Any, module: str) -> Any:
        """Replace tensors in an argument tree by references."""
        device = self.fakes.device

        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.ref(value, module)
            if isinstance(value, torch.device) and value == device:
                return DeviceRef()
            # Generated code can name Python's numbers, not numpy's.
            return value.item() if isinstance(value, np.generic) else value

        return map_tree(leaf, tree)

    def taint(self, tensor: torch.Tensor) -> None:
        """Note that a real tensor holds random numbers."""
        if not is_fake(tensor):
            self.random.add(self.storage_of(tensor))

    def is_random(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether any of the tensors holds random numbers."""
        return any(self.storage_of(tensor) in self.random for tensor in tensors)

    def save(self, tensor: torch.Tensor, call: Call | None) -> None:
        """Note what autograd keeps for ``call``, each storage once; weights never."""
        try:
            storage = self.storage_of(tensor)
        except UnknownTensorError:
            return  # of its parts, those that are dense are saved on their own
        if call is not None and storage not in self.weight_storages:
            call.saved[storage] = tensor.untyped_storage().nbytes()


def _without_memory(tensor: torch.Tensor) -> str:
    """Say what kind of tensor has no memory of its own."""
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").replace("_", " ")
        return f"a tensor is {kind}: a stage sends and keeps dense tensors only"
    return "a tensor is one of many (torch.vmap): it has no memory of its own"


def is_fake(value: Any) -> bool:
    """Whether ``value`` is a tensor without values."""
    return isinstance(value, FakeTensor)


def version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written in place; inference mode does not count."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch has no public name


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor as another object."""
    with torch.enable_grad() if tensor.requires_grad else torch.no_grad():
        return tensor.view_as(tensor)
