"""Tensor arguments of a node without their data, and data to put in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.cost.leaves import random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from partitioner.graph import TensorMeta

__all__ = ["Slot", "slot_maker", "slot_of"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor argument: what it looks like and which of the node's sources it is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    position: int
    order: tuple[int, ...]


def slot_of(meta: TensorMeta, position: int) -> Slot:
    """Return the slot of one of a node's sources."""
    return Slot(meta.shape, meta.dtype, meta.requires_grad, position, meta.order)


def slot_maker(
    leaves: list[torch.Tensor],
    *,
    copy: bool,
    examples: Mapping[int, torch.Tensor | None],
    made: dict[Slot, torch.Tensor] | None = None,
) -> Callable[[Any], Any]:
    """Return a function that makes the tensor of a slot, the same one each time.

    Integers are those of ``examples`` (by the slot's position), or zeros.

    With ``copy`` the operation gets a copy of the leaf: autograd refuses writes in
    place to a leaf, and the recorded tensor was not one.
    """
    made = {} if made is None else made

    def make(value: Any) -> Any:
        if not isinstance(value, Slot):
            return value
        if value not in made:
            example = examples.get(value.position)
            if example is None or value.dtype.is_floating_point:
                leaf = random_numbers(value.shape, value.dtype, value.order)
            else:
                leaf = example.clone()
            leaf.requires_grad_(value.requires_grad)
            if value.requires_grad:
                leaves.append(leaf)
            made[value] = leaf.clone() if copy else leaf
        return made[value]

    return make
