"""What running a part of a model out of its place may raise."""

from __future__ import annotations

__all__ = ["FAILURES"]

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What operations and modules raise that cannot run on fake tensors, or on random
numbers; torch's own are kinds of ``RuntimeError``. Arguments that refuse to be hashed
or compared raise these as well."""
