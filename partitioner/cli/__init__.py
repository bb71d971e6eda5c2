"""The command line: a module for each group of commands, and what they share."""

from __future__ import annotations

from partitioner.cli.commands import main

__all__ = ["main"]
