"""Weights to differentiate by while a pass is recorded."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Twins", "leaves_of"]


class Twins:
    """Leaves of autograd that share the memory of a module's trainable weights.

    Autograd remembers the stream on which a weight was first used, and would have a
    recording wait for it, which CUDA refuses. A twin is used in recordings alone.

    Args:
        module: Searched with its submodules.
    """

    def __init__(self, module: nn.Module) -> None:
        self.of: dict[nn.Parameter, nn.Parameter] = {}
        """Weight → twin."""
        self._places: list[tuple[dict[str, Any], str, nn.Parameter]] = []
        for part in module.modules():
            for name, weight in part._parameters.items():  # noqa: SLF001 - where torch looks
                if weight is not None and weight.requires_grad:
                    if weight not in self.of:
                        self.of[weight] = _twin(weight)
                    self._places.append((part._parameters, name, weight))  # noqa: SLF001

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the twins where the weights are."""
        try:
            for table, name, weight in self._places:
                table[name] = self.of[weight]
            yield
        finally:
            for table, name, weight in self._places:
                table[name] = weight


def _twin(weight: nn.Parameter) -> nn.Parameter:
    made = nn.Parameter(weight.detach())
    vars(made).update(vars(weight))  # a forward may read what is noted on its weight
    return made


def leaves_of(tensors: Iterable[Tensor]) -> set[Tensor]:
    """Return the leaves of autograd that tensors were computed from."""
    found = {tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    left = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(leaf)
        following = {each for each, _ in node.next_functions if each is not None}
        left += following - seen
        seen |= following
    return found
