"""Linear expressions and rows for PuLP, in time linear in their length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pulp

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Rows", "Term", "is_zero", "weighted"]

Term = Any
"""A number, a PuLP variable or a PuLP expression (PuLP has no types)."""

_SENSES = {
    "<=": pulp.LpConstraintLE,
    ">=": pulp.LpConstraintGE,
    "==": pulp.LpConstraintEQ,
}


def is_zero(term: Term) -> bool:
    """Whether a term is the number 0, not merely an expression that could be."""
    return isinstance(term, int) and term == 0


def weighted(terms: Iterable[tuple[Term, float]]) -> Any:
    """Return the sum of (term, factor) pairs as one expression."""
    total = pulp.LpAffineExpression()
    for term, factor in terms:
        if isinstance(term, pulp.LpVariable):
            total.addterm(term, factor)
        elif isinstance(term, int | float):
            total.constant += term * factor
        else:
            for variable, inner in term.items():
                total.addterm(variable, inner * factor)
            total.constant += term.constant * factor
    return total


class Rows:
    """Adds rows to a model under short names of their own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.count = 0

    def add(
        self,
        terms: Iterable[tuple[Term, float]],
        sense: Literal["<=", ">=", "=="],
        limit: float,
    ) -> None:
        """Add ``sum(factor * term) sense limit``."""
        total = weighted(terms)
        limit -= total.constant
        total.constant = 0
        self.count += 1
        if not len(total):  # a row of numbers: true, or a model without solutions
            holds = {"<=": limit >= 0, ">=": limit <= 0, "==": limit == 0}[sense]
            if holds:
                return
            total.addterm(pulp.LpVariable(f"false{self.count}", 1, 1), 1.0)
            sense, limit = "<=", 0.0
        row = pulp.LpConstraint(total, _SENSES[sense], rhs=limit)
        self.model.addConstraint(row, f"r{self.count}")

    def equal(self, name: str, terms: Iterable[tuple[Term, float]]) -> Any:
        """Return a new variable, not negative, that equals a weighted sum."""
        variable = pulp.LpVariable(name, 0)
        self.add([*terms, (variable, -1.0)], "==", 0.0)
        return variable
