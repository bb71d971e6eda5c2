"""Turn the batches that users have into the pair that DeepSpeed's pipeline takes.

The first stage gets the inputs that are used early; the last stage gets, as
"labels", the inputs that only the loss part uses, followed by the user's labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.guards import SizeGuard, check_guards
from partitioner.runtime.inputs import (
    MISSING,
    InputConstant,
    InputLeaf,
    check_tensor,
    descend,
    describe,
    entries_of,
    equals,
    is_label,
)
from partitioner.runtime.labels import LabelsLayout

if TYPE_CHECKING:
    import torch

__all__ = ["BatchAdapter"]


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
        free_sizes: For each size that may vary the (position in ``leaves``, dimension)
            pairs that have it; they must be equal, as they were in the recording.
        guards: What Python decided by these sizes in the recording.
        absent: The forward's parameters that the recording left at their defaults.
        labels: Where the structure of the labels is remembered.
    """

    leaves: tuple[InputLeaf, ...]
    first: tuple[int, ...]
    late: tuple[int, ...] = ()
    constants: tuple[InputConstant, ...] = ()
    floating: torch.dtype | None = None
    free_sizes: tuple[tuple[tuple[int, int], ...], ...] = ()
    guards: tuple[SizeGuard, ...] = ()
    absent: Mapping[str, Any] = field(default_factory=dict)
    labels: LabelsLayout = field(default_factory=LabelsLayout)
    _passed: set[tuple[torch.Size, ...]] = field(default_factory=set, repr=False)
    """Shapes whose sizes have been checked."""

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
        self._check_sizes(tensors)
        first = tuple(tensors[index] for index in self.first)
        late = tuple(tensors[index] for index in self.late)
        return (
            first[0] if len(first) == 1 else first,
            (*late, *self.labels.flatten(labels)),
        )

    def _check_sizes(self, tensors: Sequence[Tensor]) -> None:
        """Check the sizes of a batch; once for each combination of shapes."""
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes in self._passed:
            return
        for group in self.free_sizes:
            if len({shapes[index][dim] for index, dim in group}) > 1:
                places = (
                    f"{self._place(index, dim)} ({shapes[index][dim]})"
                    for index, dim in group
                )
                raise RuntimeGuardError(
                    "sizes differ that were equal in the recording: "
                    + ", ".join(places),
                    hint="partition with example inputs in which they differ too",
                )
        firsts = [group[0] for group in self.free_sizes]
        sizes = [shapes[index][dim] for index, dim in firsts]
        names = [self._place(index, dim) for index, dim in firsts]
        check_guards(self.guards, sizes, names)
        self._passed.add(shapes)

    def _place(self, index: int, dim: int) -> str:
        return f"dimension {dim} of {self.leaves[index].name!r}"

    def _separate(self, batch: Any) -> tuple[Mapping[str, Any], Any]:
        """Return the arguments by parameter, and the labels (None: there are none)."""
        if isinstance(batch, Mapping):
            arguments, rest = self._from_mapping(batch)
            self._check_absent({k: v for k, v in rest.items() if not is_label(k)})
            return arguments, _as_labels(rest)
        entries = entries_of(batch)
        if entries is not None and len(entries) == 2:  # noqa: PLR2004 - (inputs, labels)
            found = self._arguments(entries[0])
            if found is not None:
                return found, entries[1]
        found = self._arguments(batch)
        if found is not None:
            return found, None
        raise RuntimeGuardError(
            f"a batch is {describe(batch)}; "
            f"the model takes {', '.join(self.parameters)}",
            hint="give a dict by parameter name, (inputs, labels), "
            "or one entry for each parameter",
        )

    def _arguments(self, inputs: Any) -> Mapping[str, Any] | None:
        """Return the arguments if these inputs alone can be all of them."""
        if isinstance(inputs, Mapping):
            arguments, rest = self._from_mapping(inputs)
            self._check_absent(rest)
            return arguments
        entries = (inputs,) if isinstance(inputs, Tensor) else entries_of(inputs)
        for names in (self.tensor_parameters, self.parameters):
            if entries is not None and len(entries) == len(names):
                return dict(zip(names, entries, strict=True))
        return None

    def _from_mapping(
        self, batch: Mapping[Any, Any]
    ) -> tuple[Mapping[str, Any], Mapping[Any, Any]]:
        """Return the arguments, and what is left over."""
        names = self.parameters
        only = self.tensor_parameters
        if len(only) == 1 and only[0] not in batch and self._is_argument(batch):
            return {only[0]: batch}, {}
        arguments = {name: batch[name] for name in names if name in batch}
        rest = {
            key: value
            for key, value in batch.items()
            if key not in arguments and not equals(value, self.absent.get(key, MISSING))
        }
        return arguments, rest

    def _check_absent(self, rest: Mapping[Any, Any]) -> None:
        """Refuse what the forward takes, but did not get in the recording."""
        for key, value in rest.items():
            if key in self.absent:
                raise RuntimeGuardError(
                    f"the input {key!r} is {describe(value)}; the recording ran "
                    f"without it (default {self.absent[key]!r})",
                    hint="partition again with it in the example inputs, or leave it "
                    "out of the batch",
                )

    def _is_argument(self, batch: Mapping[Any, Any]) -> bool:
        """Say whether the batch is the only argument itself, a dict."""
        keys = {leaf.path[0] if leaf.path else None for leaf in self.leaves}
        return all(key in batch for key in keys)

    def _leaf(self, leaf: InputLeaf, arguments: Mapping[str, Any]) -> Tensor:
        value = descend(arguments, leaf)
        if value is MISSING:
            raise RuntimeGuardError(
                f"a batch lacks the input {leaf.name!r}; "
                f"it has {', '.join(arguments) or 'nothing'}",
                hint="every input of the recording must be in every batch",
            )
        if not isinstance(value, Tensor):
            raise RuntimeGuardError(
                f"the input {leaf.name!r} is {describe(value)}, not a tensor"
            )
        if self.floating is not None and value.is_floating_point():
            value = value.to(self.floating)
        check_tensor(leaf, value)
        return value

    @staticmethod
    def _check_constant(constant: InputConstant, arguments: Mapping[str, Any]) -> None:
        value = descend(arguments, constant)
        if value is not MISSING and not equals(value, constant.value):
            raise RuntimeGuardError(
                f"the input {constant.parameter!r} is {describe(value)}; "
                f"the pipeline was made for {constant.value!r}",
                hint="partition again with this value in the example inputs",
            )


def _as_labels(rest: Mapping[Any, Any]) -> Any:
    """Return what is left over for the loss: one entry stands for itself."""
    if not rest:
        return None
    return next(iter(rest.values())) if len(rest) == 1 else rest
