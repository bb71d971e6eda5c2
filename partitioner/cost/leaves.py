"""Call leaf modules on fake weights, and tell when two of them run the same kernels."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from partitioner.runtime.memory_order import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.graph import ModelGraph

__all__ = ["ByIdentity", "leaf_call", "leaf_key", "random_numbers"]

_INTERNALS = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (type(None), bool, int, float, str, torch.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """Something in a key that equals itself only."""

    value: object

    def __eq__(self, other: object) -> bool:
        """Whether both hold the very same object."""
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        """Hash what :meth:`__eq__` compares."""
        return id(self.value)


def leaf_key(model: nn.Module, path: str) -> tuple[Any, ...]:
    """Return a key that is equal for leaf modules of equal type, shapes and settings.

    An attribute that cannot be compared by value counts by identity, so such a module
    equals itself only.
    """
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, tuple(tensor.shape), tensor.requires_grad)
                for key, tensor in [
                    *module.named_parameters(recurse=False),
                    *module.named_buffers(recurse=False),
                ]
            ),
            tuple(
                (key, _comparable(value))
                for key, value in vars(module).items()
                if key not in _INTERNALS
            ),
        )
        for name, module in model.get_submodule(path).named_modules()
    )


def _comparable(value: object) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    if isinstance(value, type) or (callable(value) and not _attributes(value)):
        return value
    return ByIdentity(value)


def _attributes(value: object) -> dict[str, Any]:
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found


def leaf_call(
    graph: ModelGraph,
    path: str,
    leaves: list[torch.Tensor],
    held: list[torch.Tensor] | None = None,
) -> Callable[..., Any]:
    """Return a call of the module at ``path`` on fake weights, in train mode.

    Args:
        graph: The recorded model.
        path: Path of the module.
        leaves: Fake parameters that need a gradient are appended here.
        held: All fake parameters and buffers are appended here.

    Returns:
        A function of the module's own arguments. Must be made and called under a fake
        tensor mode.
    """
    module = graph.model.get_submodule(path)
    weights = {
        name: _fake(tensor, graph.dtype, leaves)
        for name, tensor in module.named_parameters()
    }
    buffers = {
        name: random_numbers(tensor.shape, tensor.dtype)
        for name, tensor in module.named_buffers()
    }

    if held is not None:
        held += [*weights.values(), *buffers.values()]

    def call(*args: Any, **kwargs: Any) -> Any:
        with _as_it_trains(graph.model, module):
            return functional_call(module, {**weights, **buffers}, args, kwargs)

    return call


def random_numbers(
    shape: Sequence[int], dtype: torch.dtype, order: Sequence[int] = ()
) -> torch.Tensor:
    """Return small random numbers, or zeros of a type that holds no fractions.

    Args:
        shape: Of the tensor.
        dtype: Likewise.
        order: How its dimensions lie in memory, as in ``TensorMeta``.
    """
    zeros = in_order(shape, order, partial(torch.zeros, dtype=dtype))
    return zeros.normal_(std=0.02) if dtype.is_floating_point else zeros


def _fake(
    parameter: torch.Tensor, dtype: torch.dtype, leaves: list[torch.Tensor]
) -> torch.Tensor:
    cast = dtype if parameter.is_floating_point() else parameter.dtype
    fake = random_numbers(parameter.shape, cast)
    fake.requires_grad_(parameter.requires_grad)
    if fake.requires_grad:
        leaves.append(fake)
    return fake


@contextlib.contextmanager
def _as_it_trains(model: nn.Module, module: nn.Module) -> Iterator[None]:
    """Put ``module`` in train mode for a moment if the model was handed over in eval.

    A part that is in eval mode inside a model in train mode was frozen on purpose.
    """
    parts = [part for part in module.modules() if not part.training]
    if model.training:
        parts = []
    for part in parts:
        part.training = True
    try:
        yield
    finally:
        for part in parts:
            part.training = False
