"""The tables of ``benchmarks/planning.py``."""

from __future__ import annotations

__all__: list[str] = []
