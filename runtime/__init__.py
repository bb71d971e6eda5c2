"""Trained pipelines at run time: what a training process imports, without the compiler.

The folder stands at the top of the repository and is imported as
``partitioner.runtime`` through a symbolic link. Under any other name there would be
two copies of every class, and a layer built by one would not be an instance of the
other's, so any other name is refused.
"""

from __future__ import annotations

__all__: list[str] = []

if __name__ != "partitioner.runtime":
    _MESSAGE = (
        f"this package is partitioner.runtime, but was imported as {__name__!r}: "
        "write `import partitioner.runtime`"
    )
    raise ImportError(_MESSAGE)
