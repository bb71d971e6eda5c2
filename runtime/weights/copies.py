"""Copies of a model that have other tensors, and all else as the user made it."""

from __future__ import annotations

import copy
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["copy_with", "like", "tensors_of"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield every parameter and buffer once."""
    yield from model.parameters()
    yield from model.buffers()


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return ``values`` as the kind of tensor that ``tensor`` is.

    A parameter stays one, of its own class; attributes that were set on it
    (``weight._no_weight_decay``) are there too.
    """
    made: Tensor = values
    if isinstance(tensor, nn.Parameter):
        made = torch.Tensor._make_subclass(  # noqa: SLF001 - what nn.Parameter itself calls
            type(tensor), values, tensor.requires_grad
        )
    # Hugging Face marks what has its values already: this has not.
    marks = {k: v for k, v in vars(tensor).items() if k != "_is_hf_initialized"}
    made.__dict__.update(marks)
    return made


def copy_with(
    model: nn.Module, replace: Callable[[Tensor], Tensor]
) -> tuple[nn.Module, dict[int, Any]]:
    """Copy a model, with other tensors in place of its parameters and buffers.

    Every reference to a tensor or module inside follows: names that share one, lists
    of them, methods bound to modules. Hooks that are functions, or bound to what is
    no module, are the user's own.

    Args:
        model: The model, left as it is.
        replace: Returns the tensor to put in the place of one of the model's.

    Returns:
        The copy, and what became of each object, by its id.

    Raises:
        WeightsError: Something in the model cannot be copied.
    """
    memo: dict[int, Any] = {id(each): replace(each) for each in tensors_of(model)}
    for module in model.modules():
        memo.update({id(owner): owner for owner in _hook_owners(module)})
        for value in vars(module).values():
            # What a forward left behind; copy refuses it if it has a gradient.
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value)
    try:
        made = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, AttributeError, copy.Error) as error:
        raise WeightsError(
            f"the model ({type(model).__name__}) cannot be copied: {error}",
            hint="each rank gives its weights to a copy of its modules; keep what "
            "cannot be copied out of them, or load the model before partition()",
        ) from error
    return made, memo


def _hook_owners(module: nn.Module) -> Iterator[Any]:
    """Yield the objects that a module's hooks are, or are bound to."""
    for table in _HOOKS:
        for hook in vars(module).get(table, {}).values():
            owner = getattr(hook, "__self__", hook)
            if not isinstance(owner, nn.Module | FunctionType | type):
                yield owner
