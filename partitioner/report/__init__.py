"""Report: a plan or a verification, as a dictionary → text. Knows no torch."""

from __future__ import annotations

__all__: list[str] = []
