"""The source that a segment's graph is turned into, and back from a line of it."""

from __future__ import annotations

import linecache
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

__all__ = ["ORIGIN", "compiled", "is_generated", "origin"]

ORIGIN = "origin"
"""Key of ``node.meta``: (path of the module that ran it, ``file:line``)."""

_PREFIX = "<segment "
_serial = count()


def compiled(graph: fx.Graph, name: str) -> tuple[str, Any]:
    """Compile a graph to a function of (scope, *values).

    Not a GraphModule: it registers buffers again inside the user's own modules.

    Args:
        graph: The operations.
        name: Of the segment, for tracebacks.

    Returns:
        The source and the function.
    """
    generated = graph.python_code("self")
    source = f"{generated.src.strip()}\n"
    filename = f"{_PREFIX}{name} #{next(_serial)}>"
    # Without a modification time linecache keeps the entry, and tracebacks show it.
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace = dict(generated.globals)
    exec(compile(source, filename, "exec"), namespace)
    return source, namespace["forward"]


def is_generated(filename: str) -> bool:
    """Whether a frame's file is the source of a segment."""
    return filename.startswith(_PREFIX)


def origin(graph: fx.Graph, line: str) -> tuple[str, str]:
    """Return the module and the source line that an operation was recorded in.

    Args:
        graph: The segment's.
        line: A line of its source: ``add = torch.add(x, y);  x = None``.

    Returns:
        (path of the module, ``file:line``); empty where nothing is known.
    """
    name = line.partition("=")[0].partition(":")[0].strip()
    for node in graph.nodes:
        if node.name == name:
            found: tuple[str, str] = node.meta.get(ORIGIN, ("", ""))
            return found
    return "", ""
