"""Sizes that remember what they were computed from, and what Python decided by them.

A size that the forward reads is an ``int`` in all respects (``isinstance``, hash,
range, slices, json); comparing it writes down what was compared.
"""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from partitioner.capture.tree import map_tree
from partitioner.runtime.guards import OPERATORS, RELATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.capture.size_log import SizeLog

__all__ = ["TrackedInt", "expression_of", "followed_ranges", "plain"]

ROUNDING = frozenset(("//", "%", "&", "|", "^", "<<", ">>", "round", "ceil", "floor"))
"""Operators whose result is the same for many sizes."""


class Tracked:
    """What integers and floats that are followed have in common."""

    expression: Any
    log: SizeLog

    def __reduce__(self) -> Any:
        """Copies are plain numbers."""
        value = _value(self)
        return type(value), (value,)

    def __bool__(self) -> bool:
        value = _value(self)
        _decide(self, "!=", 0, outcome=value != 0)
        return bool(value)

    def __hash__(self) -> int:
        _escape(self)
        return hash(_value(self))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __trunc__(self) -> Any:
        return int(self)

    def __int__(self) -> int:
        value = _value(self)
        if isinstance(self, float) and not self.log.listener.silent:
            _round(self.log, ("int", self.expression), int(value))
        _escape(self)
        return int(value)

    def __float__(self) -> float:
        _escape(self)
        return float(_value(self))


class TrackedInt(Tracked, int):
    """An integer made of sizes."""

    @classmethod
    def of(cls, value: int, expression: Any, log: SizeLog) -> TrackedInt:
        """Return ``value`` with the expression it came from."""
        number = cls(value)
        number.expression, number.log = expression, log
        return number


class TrackedFloat(Tracked, float):
    """A float made of sizes."""

    @classmethod
    def of(cls, value: float, expression: Any, log: SizeLog) -> TrackedFloat:
        """Return ``value`` with the expression it came from."""
        number = cls(value)
        number.expression, number.log = expression, log
        return number


def _value(number: Any) -> Any:
    """Return the bare number."""
    if isinstance(number, TrackedInt):
        return int.__pos__(number)
    return float.__pos__(number) if isinstance(number, TrackedFloat) else number


def expression_of(number: Any, log: SizeLog) -> Any:
    """Return what a number is made of; one of another recording is a constant."""
    if isinstance(number, Tracked) and number.log is log:
        return number.expression
    return _value(number)


def _decide(number: Tracked, relation: str, other: Any, *, outcome: bool) -> None:
    log = number.log
    if not log.listener.silent:
        right = expression_of(other, log)
        log.decide(relation, number.expression, right, outcome=outcome, rounded=False)


def _round(log: SizeLog, expression: Any, value: int) -> None:
    log.decide("==", expression, value, outcome=True, rounded=True)


def _escape(number: Tracked) -> None:
    if not number.log.listener.silent:
        number.log.escape(number.expression)


def _result(name: str, operands: tuple[Any, ...], log: SizeLog) -> Any:
    """Compute, and follow the result."""
    value = OPERATORS[name](*map(_value, operands))
    if log.listener.silent or not isinstance(value, (int, float)):
        return value
    expression = (name, *(expression_of(operand, log) for operand in operands))
    if isinstance(value, float):
        return TrackedFloat.of(value, expression, log)
    if name in ROUNDING:
        _round(log, expression, value)
    return TrackedInt.of(value, expression, log)


def _binary(name: str, *, swapped: bool) -> Callable[..., Any]:
    def method(self: Tracked, other: Any, *rest: Any) -> Any:
        if rest or not isinstance(other, (int, float)):  # pow(a, b, modulus)
            return NotImplemented
        operands = (other, self) if swapped else (self, other)
        return _result(name, operands, self.log)

    return method


def _unary(name: str) -> Callable[..., Any]:
    def method(self: Tracked, *rest: Any) -> Any:
        return _result(name, (self, *rest), self.log)

    return method


def _compare(name: str) -> Callable[..., Any]:
    def method(self: Tracked, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        outcome = RELATIONS[name](_value(self), _value(other))
        _decide(self, name, other, outcome=outcome)
        return outcome

    return method


_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "**", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_UNARY = {
    "neg": "neg", "abs": "abs", "invert": "invert", "round": "round", "ceil": "ceil",
    "floor": "floor",
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}


def _add_operators() -> None:
    for name, sign in _BINARY.items():
        setattr(Tracked, f"__{name}__", _binary(sign, swapped=False))
        setattr(Tracked, f"__r{name}__", _binary(sign, swapped=True))
    for name, sign in _UNARY.items():
        setattr(Tracked, f"__{name}__", _unary(sign))
    for name, sign in _COMPARE.items():
        setattr(Tracked, f"__{name}__", _compare(sign))


_add_operators()


def plain(tree: Any) -> Any:
    """Return nested values with plain numbers; the same object if all were plain."""
    return map_tree(_value, tree) if _holds_tracked(tree) else tree


def _holds_tracked(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(map(_holds_tracked, tree))
    if type(tree) is dict:
        return any(map(_holds_tracked, tree.values()))
    if isinstance(tree, slice):
        return any(map(_holds_tracked, (tree.start, tree.stop, tree.step)))
    return isinstance(tree, Tracked)


_range = builtins.range


class _RangeType(type):
    """Makes ``isinstance(value, range)`` true of ranges."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _range)


class _Range(metaclass=_RangeType):
    """Takes the place of ``range``: C code takes an integer's value unasked."""

    def __new__(cls, *bounds: Any) -> Any:
        found = _range(*map(_value, bounds))
        log = next((b.log for b in bounds if isinstance(b, Tracked)), None)
        if log is not None and not log.listener.silent:
            loops = ("loops", *(expression_of(bound, log) for bound in bounds))
            log.decide("==", loops, len(found), outcome=True, rounded=False)
        return found


@contextmanager
def followed_ranges() -> Iterator[None]:
    """Let ``range`` write down how often a loop over sizes runs."""
    setattr(builtins, "range", _Range)  # noqa: B010 - a type checker knows better
    try:
        yield
    finally:
        setattr(builtins, "range", _range)  # noqa: B010
