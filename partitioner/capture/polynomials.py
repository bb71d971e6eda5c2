"""Expressions of sizes as polynomials: which are equal, and how small they can be."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["Polynomial", "lower_bound", "polynomial"]

Polynomial = dict[tuple[Any, ...], float]
"""Product of factors, sorted → coefficient; ``()`` is the constant. A factor is
``("size", k)``, or an expression that is no polynomial."""


def polynomial(expression: Any) -> Polynomial:
    """Return the polynomial that an expression is."""
    if not isinstance(expression, tuple):
        return {(): expression} if expression else {}
    head, *parts = expression
    if head == "+":
        return _sum(polynomial(parts[0]), polynomial(parts[1]), 1)
    if head == "-":
        return _sum(polynomial(parts[0]), polynomial(parts[1]), -1)
    if head == "neg":
        return _sum({}, polynomial(parts[0]), -1)
    if head == "*":
        return _product(polynomial(parts[0]), polynomial(parts[1]))
    return {(expression,): 1}


def _sum(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    total = dict(left)
    for factors, coefficient in right.items():
        total[factors] = total.get(factors, 0) + sign * coefficient
    return {factors: c for factors, c in total.items() if c}


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for one, a in left.items():
        for other, b in right.items():
            factors = tuple(sorted((*one, *other), key=repr))
            total = _sum(total, {factors: a * b}, 1)
    return total


def lower_bound(found: Polynomial, sign: int = 1) -> float:
    """Return a number that ``sign`` times the polynomial is never below.

    Sizes are 1 or more; ``-inf`` where that does not tell.
    """
    total = 0.0
    for factors, coefficient in found.items():
        ranges = [_range(factor) for factor in factors]
        if any(low < 0 for low, _ in ranges):
            return -math.inf
        scaled = sign * coefficient
        ends = [low if scaled > 0 else high for low, high in ranges]
        total += 0 if 0 in ends else scaled * math.prod(ends)  # 0 × ∞ is 0 here
    return total


def _range(factor: Any) -> tuple[float, float]:
    """Return the least and the largest value of a factor, as far as that is known."""
    head, *parts = factor
    if head == "size":
        return 1, math.inf
    if head in ("//", "%", "/") and _is_positive(parts[1]):
        if head == "%":
            return 0, parts[1] - 1 if isinstance(parts[1], int) else math.inf
        if lower_bound(polynomial(parts[0])) >= 0:
            return 0, math.inf
    if head == "loops":
        return 0, math.inf
    return -math.inf, math.inf


def _is_positive(expression: Any) -> bool:
    return lower_bound(polynomial(expression)) > 0
