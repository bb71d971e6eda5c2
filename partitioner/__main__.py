"""Run the command line as ``python -m partitioner``."""

from __future__ import annotations

from partitioner.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
