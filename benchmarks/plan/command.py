"""Runs the tables that were asked for and writes what they found."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Run and print."""
    return 0
