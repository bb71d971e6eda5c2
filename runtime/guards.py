"""Guards: what Python decided about sizes in the recording, checked for every batch."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partitioner.errors import RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

__all__ = [
    "OPERATORS",
    "RELATIONS",
    "SizeGuard",
    "WeightGuards",
    "check_guards",
    "evaluate",
    "sizes_in",
]

RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "neg": operator.neg,
    "abs": abs,
    "invert": operator.invert,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "int": int,
    "loops": lambda *bounds: len(range(*bounds)),
}
"""What an expression of sizes may be made of, as Python itself computes it."""


def evaluate(expression: Any, sizes: Sequence[int]) -> Any:
    """Return the number that an expression is at the given sizes.

    Args:
        expression: A number; ``("size", k)`` for free size k; or an operator's name
            followed by expressions.
        sizes: The free sizes.
    """
    if not isinstance(expression, tuple):
        return expression
    head, *parts = expression
    if head == "size":
        return sizes[parts[0]]
    return OPERATORS[head](*(evaluate(part, sizes) for part in parts))


def sizes_in(expression: Any) -> set[int]:
    """Return the numbers of the free sizes in an expression."""
    if not isinstance(expression, tuple):
        return set()
    if expression[0] == "size":
        return {expression[1]}
    return {number for part in expression[1:] for number in sizes_in(part)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGuard:
    """A relation between sizes that held wherever the model was recorded."""

    relation: str
    """A key of ``RELATIONS``."""
    left: Any
    right: Any
    text: str
    """The relation in words of the inputs: ``x.size(1) <= 512``."""
    module: str
    """Path of the module call whose Python decided; "" for the root."""
    source: str
    """``file:line`` of the decision."""

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether the relation holds at these free sizes (a division by zero: no)."""
        try:
            left, right = evaluate(self.left, sizes), evaluate(self.right, sizes)
            return RELATIONS[self.relation](left, right)
        except ArithmeticError:
            return False

    def sizes(self) -> list[int]:
        """Return the numbers of the free sizes that it is about."""
        return sorted(sizes_in(self.left) | sizes_in(self.right))

    def where(self) -> str:
        """Return where the model decided: ``model.py:12, in encoder``."""
        return f"{self.source or 'torch'}, in {self.module or 'the root'}"


def check_guards(
    guards: Sequence[SizeGuard], sizes: Sequence[int], names: Sequence[str]
) -> None:
    """Check that Python would decide as it did in the recording.

    Args:
        guards: What must hold.
        sizes: The free sizes of this batch.
        names: What each size is, such as ``dimension 1 of 'input_ids'``.

    Raises:
        RuntimeGuardError: The first guard that does not hold; names the input, its
            size and the line.
    """
    for guard in guards:
        if guard.holds(sizes):
            continue
        found = " and ".join(f"{names[k]} is {sizes[k]}" for k in guard.sizes())
        raise RuntimeGuardError(
            f"{found}, and the recording took a branch that needs {guard.text} "
            f"({guard.where()})",
            hint="partition again with example inputs of this size: the forward takes "
            "another Python branch there",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGuards:
    """What the recording took for granted of the weights, checked at the first batch.

    Args:
        dtypes: Dtype of every parameter in the recording, by each of its names.
        device_type: The kind of device that the recording seemed to run on.
        device_reads: Where Python asked for the kind of device, in words.
    """

    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    device_type: str = "cpu"
    device_reads: tuple[str, ...] = ()

    def check(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Check a stage's parameters.

        Args:
            parameters: (original name, parameter) pairs.

        Raises:
            RuntimeGuardError: One has another dtype, or is on a kind of device that
                the forward would tell from the recorded one.
        """
        for name, parameter in parameters:
            recorded = self.dtypes.get(name, parameter.dtype)
            if parameter.dtype != recorded:
                raise RuntimeGuardError(
                    f"parameter {name!r} runs in {parameter.dtype}, and the plan was "
                    f"recorded with {recorded}: casts to it are built into the stages",
                    hint="use the precision of plan.ds_config() in DeepSpeed's "
                    f"configuration, or partition again with dtype={parameter.dtype}",
                )
            kind = parameter.device.type
            if self.device_reads and kind != self.device_type:
                raise RuntimeGuardError(
                    f"the stages run on {kind}, and the forward, recorded on "
                    f"{self.device_type}, asks for that: {self.device_reads[0]}",
                    hint="name the module in leaf=[…], so that its own Python asks, or "
                    f"partition the model on {kind}",
                )
