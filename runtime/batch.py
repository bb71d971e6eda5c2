"""Turn the batches that users have into the pair that DeepSpeed's pipeline takes.

The first stage gets the inputs that are used early; the last stage gets, as
"labels", the inputs that only the loss part uses, followed by the user's labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import RuntimeGuardError

__all__ = ["BatchAdapter", "InputConstant", "InputLeaf", "LabelsLayout"]

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLeaf:
    """One tensor among the forward's arguments.

    Args:
        name: Name for messages, such as "encoder.mask".
        parameter: The forward's parameter that holds it.
        path: Keys and indices inside that argument; empty if it is the tensor.
        dtype: Its dtype in the recording (after casting floating inputs).
        shape: Its shape; None for a dimension that may vary.
    """

    name: str
    parameter: str
    path: tuple[str | int, ...] = ()
    dtype: torch.dtype
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConstant:
    """One argument that is no tensor; its value is built into the pipeline.

    Args:
        parameter: The forward's parameter.
        path: Keys and indices inside that argument.
        value: What it was in the recording.
    """

    parameter: str
    path: tuple[str | int, ...] = ()
    value: object


class LabelsLayout:
    """How the flat labels of the last micro-batch were made.

    The adapter writes it and the loss reads it, on the last stage, where
    DeepSpeed runs the forward of a micro-batch right after loading it.

    Args:
        late: How many inputs come before the user's labels.
    """

    def __init__(self, late: int = 0) -> None:
        self.late = late
        self._spec: pytree.TreeSpec | None = None
        self._others: dict[int, Any] = {}

    def flatten(self, labels: Any) -> tuple[Tensor, ...]:
        """Return the tensors of the user's labels, and remember all the rest."""
        # A BatchEncoding is a mapping that pytree does not know.
        plain = dict(labels) if isinstance(labels, Mapping) else labels
        leaves, self._spec = pytree.tree_flatten(plain)
        self._others = {
            index: leaf
            for index, leaf in enumerate(leaves)
            if not isinstance(leaf, Tensor)
        }
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def split(self, labels: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Return the late inputs and the user's labels as the user gave them.

        Args:
            labels: What DeepSpeed hands to the loss.

        Raises:
            RuntimeGuardError: The labels did not come through the adapter.
        """
        if self._spec is None:
            if self.late:
                raise RuntimeGuardError(
                    f"the loss needs {self.late} of the model's inputs",
                    hint="call engine.set_batch_fn(plan.batch_fn) before training",
                )
            return (), labels
        tensors = (labels,) if isinstance(labels, Tensor) else tuple(labels)
        expected = self.late + self._spec.num_leaves - len(self._others)
        if len(tensors) != expected:
            raise RuntimeGuardError(
                f"the loss got {len(tensors)} tensors as labels; "
                f"the batch adapter made {expected}",
                hint="engine.set_batch_fn must have plan.batch_fn as it is",
            )
        return tensors[: self.late], self._unflatten(tensors[self.late :])

    def _unflatten(self, tensors: tuple[Tensor, ...]) -> Any:
        rest = iter(tensors)
        spec = self._spec
        if spec is None:  # split() has been before
            return None
        leaves = [
            self._others[index] if index in self._others else next(rest)
            for index in range(spec.num_leaves)
        ]
        return pytree.tree_unflatten(leaves, spec)


@dataclass(frozen=True, kw_only=True)
class BatchAdapter:
    """A function for ``engine.set_batch_fn``.

    Accepts a dict whose keys are names of the forward's parameters (what is left
    over is labels: one entry stands for itself, several stay a dict); a pair
    ``(inputs, labels)`` whose inputs are a tensor, a tuple or a dict; or a bare
    tensor or a tuple with one entry for each parameter.

    Args:
        leaves: The recorded input tensors in order.
        first: Positions in ``leaves`` of what the first stage receives.
        late: Positions in ``leaves`` of what the loss part receives.
        constants: The recorded arguments that are no tensors.
        floating: Dtype to which floating inputs are cast; None leaves them.
        equal_sizes: Groups of (position in ``leaves``, dimension) whose sizes must be
            equal, because they were when the model was recorded.
        labels: Where the structure of the labels is remembered.
    """

    leaves: tuple[InputLeaf, ...]
    first: tuple[int, ...]
    late: tuple[int, ...] = ()
    constants: tuple[InputConstant, ...] = ()
    floating: torch.dtype | None = None
    equal_sizes: tuple[tuple[tuple[int, int], ...], ...] = ()
    labels: LabelsLayout = field(default_factory=LabelsLayout)

    def __post_init__(self) -> None:
        self.labels.late = len(self.late)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The forward's parameters that have been given, in order."""
        entries: tuple[InputLeaf | InputConstant, ...] = (*self.leaves, *self.constants)
        return tuple(dict.fromkeys(entry.parameter for entry in entries))

    @property
    def tensor_parameters(self) -> tuple[str, ...]:
        """The parameters that hold tensors, in order."""
        return tuple(dict.fromkeys(leaf.parameter for leaf in self.leaves))

    def __call__(
        self, batch: Any
    ) -> tuple[Tensor | tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return ``(inputs, labels)`` in DeepSpeed's form.

        Args:
            batch: One micro-batch, as the data loader yields it.

        Returns:
            A tensor or a tuple of several tensors for the first stage, and a
            tuple of tensors for the last.

        Raises:
            RuntimeGuardError: An input is missing, or it is not what was
                recorded; the message names it.
        """
        arguments, labels = self._separate(batch)
        for constant in self.constants:
            self._check_constant(constant, arguments)
        tensors = [self._leaf(leaf, arguments) for leaf in self.leaves]
        self._check_equal_sizes(tensors)
        first = tuple(tensors[index] for index in self.first)
        late = tuple(tensors[index] for index in self.late)
        return (
            first[0] if len(first) == 1 else first,
            (*late, *self.labels.flatten(labels)),
        )

    def _check_equal_sizes(self, tensors: Sequence[Tensor]) -> None:
        for group in self.equal_sizes:
            sizes = {tensors[index].shape[dim] for index, dim in group}
            if len(sizes) > 1:
                places = ", ".join(
                    f"dimension {dim} of {self.leaves[index].name!r} "
                    f"({tensors[index].shape[dim]})"
                    for index, dim in group
                )
                raise RuntimeGuardError(
                    f"sizes differ that were equal in the recording: {places}",
                    hint="partition with example inputs in which they differ too",
                )

    def _separate(self, batch: Any) -> tuple[Mapping[str, Any], Any]:
        """Return the arguments by parameter, and the labels (None: there are none)."""
        if isinstance(batch, Mapping):
            return self._from_mapping(batch)
        entries = _entries(batch)
        if entries is not None and len(entries) == 2:  # noqa: PLR2004 - (inputs, labels)
            arguments = self._arguments(entries[0])
            if arguments is not None:
                return arguments, entries[1]
        arguments = self._arguments(batch)
        if arguments is not None:
            return arguments, None
        raise RuntimeGuardError(
            f"a batch is {_describe(batch)}; "
            f"the model takes {', '.join(self.parameters)}",
            hint="give a dict by parameter name, (inputs, labels), "
            "or one entry for each parameter",
        )

    def _arguments(self, inputs: Any) -> Mapping[str, Any] | None:
        """Return the arguments if these inputs alone can be all of them."""
        if isinstance(inputs, Mapping):
            return self._from_mapping(inputs)[0]
        entries = (inputs,) if isinstance(inputs, Tensor) else _entries(inputs)
        for names in (self.tensor_parameters, self.parameters):
            if entries is not None and len(entries) == len(names):
                return dict(zip(names, entries, strict=True))
        return None

    def _from_mapping(self, batch: Mapping[Any, Any]) -> tuple[Mapping[str, Any], Any]:
        names = self.parameters
        only = self.tensor_parameters
        if len(only) == 1 and only[0] not in batch and self._is_argument(batch):
            return {only[0]: batch}, None
        arguments = {name: batch[name] for name in names if name in batch}
        # What is left over is for the loss.
        rest = {key: value for key, value in batch.items() if key not in arguments}
        if not rest:
            return arguments, None
        return arguments, next(iter(rest.values())) if len(rest) == 1 else rest

    def _is_argument(self, batch: Mapping[Any, Any]) -> bool:
        """Say whether the batch is the only argument itself, a dict."""
        keys = {leaf.path[0] if leaf.path else None for leaf in self.leaves}
        return all(key in batch for key in keys)

    def _leaf(self, leaf: InputLeaf, arguments: Mapping[str, Any]) -> Tensor:
        value = _descend(arguments, leaf)
        if value is _MISSING:
            raise RuntimeGuardError(
                f"a batch lacks the input {leaf.name!r}; "
                f"it has {', '.join(arguments) or 'nothing'}",
                hint="every input of the recording must be in every batch",
            )
        if not isinstance(value, Tensor):
            raise RuntimeGuardError(
                f"the input {leaf.name!r} is {_describe(value)}, not a tensor"
            )
        if self.floating is not None and value.is_floating_point():
            value = value.to(self.floating)
        _check_tensor(leaf, value)
        return value

    @staticmethod
    def _check_constant(constant: InputConstant, arguments: Mapping[str, Any]) -> None:
        value = _descend(arguments, constant)
        if value is not _MISSING and not _equals(value, constant.value):
            raise RuntimeGuardError(
                f"the input {constant.parameter!r} is {_describe(value)}; "
                f"the pipeline was made for {constant.value!r}",
                hint="partition again with this value in the example inputs",
            )


def _check_tensor(leaf: InputLeaf, value: Tensor) -> None:
    if value.dtype != leaf.dtype:
        raise RuntimeGuardError(
            f"the input {leaf.name!r} has dtype {value.dtype}; "
            f"the plan has {leaf.dtype}"
        )
    shape = tuple(value.shape)
    if len(shape) != len(leaf.shape) or any(
        want not in {None, have} for want, have in zip(leaf.shape, shape, strict=True)
    ):
        raise RuntimeGuardError(
            f"the input {leaf.name!r} has shape {shape}; the plan has {leaf.shape}",
            hint="partition again with example inputs of this shape",
        )


def _descend(arguments: Mapping[str, Any], entry: InputLeaf | InputConstant) -> Any:
    value = arguments.get(entry.parameter, _MISSING)
    try:
        for key in entry.path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING
    return value


def _entries(value: Any) -> Sequence[Any] | None:
    return value if isinstance(value, (tuple, list)) else None


def _equals(left: Any, right: Any) -> bool:
    return not isinstance(left, Tensor) and type(left) is type(right) and left == right


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    entries = _entries(value)
    if entries is not None:
        return f"a {type(value).__name__} of {len(entries)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(str, value))}"
    return repr(value)
