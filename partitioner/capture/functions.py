"""Torch functions as the recorder sees them: names, targets, and what they may do."""

from __future__ import annotations

import sys
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.tree import children, is_plain, map_tree

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "QUERIES",
    "READS",
    "SIDE_EFFECTS",
    "as_target",
    "custom_function",
    "function_name",
    "on_fakes",
    "opaque_argument",
    "tensors_in",
]

READS = frozenset(
    (
        "__array__", "__bool__", "__complex__", "__contains__", "__float__",
        "__index__", "__int__", "allclose", "equal", "is_nonzero", "item", "numpy",
        "tolist",
    )
)  # fmt: skip
"""Functions that hand a tensor's values to Python."""

QUERIES = frozenset(
    (
        "__dir__", "__format__", "__get__device", "__get__dtype", "__get__grad_fn",
        "__get__is_cpu", "__get__is_cuda", "__get__is_leaf", "__get__is_meta",
        "__get__itemsize", "__get__layout", "__get__nbytes", "__get__ndim",
        "__get__requires_grad",
        "__get__shape", "__hash__", "__len__", "__repr__", "broadcast_shapes",
        "can_cast", "data_ptr", "dim", "element_size", "finfo", "get_device", "iinfo",
        "is_complex", "is_contiguous", "is_floating_point", "is_inference",
        "is_pinned", "is_same_size", "is_set_to", "is_signed", "is_tensor",
        "ndimension", "nelement", "numel", "promote_types", "result_type", "size",
        "storage_offset", "stride", "type_as_string", "untyped_storage",
    )
)  # fmt: skip
"""Functions that neither make nor change a tensor."""

SIDE_EFFECTS = frozenset(("register_hook", "register_post_accumulate_grad_hook"))
"""Functions whose effect is in no result and in no tensor's memory."""


def function_name(func: Callable[..., Any]) -> str:
    """Return the plain name: ``add``, ``__getitem__``, ``__get__shape``."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in {"__get__", "__set__"}:
        owner = getattr(func, "__self__", None)
        return f"{name}{getattr(owner, '__name__', '')}"
    return str(name)


def as_target(
    func: Callable[..., Any], name: str, args: tuple[Any, ...]
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return (kind, target, arguments) in terms that generated code can name."""
    if name.startswith("__get__"):
        return "function", getattr, (args[0], name.removeprefix("__get__"))
    if name == "__deepcopy__":
        args = (*args[:1], {})  # copy's memory of this forward's other objects
    method = name if getattr(torch.Tensor, name, None) is func else _method_name(func)
    if method:
        return "method", method, args
    return "function", _nameable(func), args


@cache
def _tensor_methods() -> dict[int, str]:
    """Return id of a function of ``torch.Tensor`` → the name it is an attribute by."""
    return {
        id(method): name
        for name in dir(torch.Tensor)
        if isinstance(method := getattr(torch.Tensor, name, None), FunctionType)
    }


def _method_name(func: Callable[..., Any]) -> str:
    """Return the method that a wrapped function is: ``pow`` is ``__pow__``; or ""."""
    return _tensor_methods().get(id(func), "")


@cache
def _nameable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``func``, or a function of ours if its own name leads elsewhere.

    Generated code writes torch's functions as ``torch.module.name`` and all others as
    objects of its namespace.
    """
    module = getattr(func, "__module__", None) or ""
    if not isinstance(func, FunctionType) or not module.startswith("torch"):
        return func
    named: object = getattr(sys.modules.get(module), func.__name__, None)
    if named is func:
        return func

    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    call.__name__ = call.__qualname__ = func.__name__
    return call


def on_fakes(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return what does on fakes as ``func`` does on other tensors."""
    if name != "__deepcopy__":
        return func

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not tensor.is_leaf:  # refused, as without fakes
            return func(tensor, memo)
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return copied


@cache
def custom_function(cls: type) -> Callable[..., Any]:
    """Return a function that applies a custom autograd function, with its name."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)  # type: ignore[attr-defined]

    apply.__name__ = f"{cls.__name__}_apply"
    apply.__qualname__ = f"{cls.__qualname__}_apply"
    apply.__module__ = cls.__module__
    return apply


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of nested containers, in order."""
    found: list[torch.Tensor] = []
    _collect_tensors(tree, found)
    return found


def _collect_tensors(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif not is_plain(value):
        for _, child in children(value) or ():
            _collect_tensors(child, found)


def opaque_argument(tree: Any) -> str:
    """Return the class name of the first argument that is no plain value; or ""."""
    found: list[Any] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) and not is_plain(value):
            found.append(value)
        return value

    map_tree(leaf, tree)
    return f"an argument of type {type(found[0]).__name__}" if found else ""
