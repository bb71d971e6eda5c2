"""What ``pipeline_module(compile=…)`` hands to ``torch.compile``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from partitioner.errors import OptionError

__all__ = ["compile_options"]

_GRAPHS = {"reduce-overhead", "max-autotune"}
"""Modes that record CUDA graphs."""


def compile_options(given: Any) -> dict[str, Any] | None:
    """Return the keyword arguments for ``torch.compile``; None: not at all.

    Args:
        given: Whether to compile, or the keyword arguments themselves.

    Raises:
        OptionError: It is neither, ``torch.compile`` has no such argument, or the mode
            replays CUDA graphs: their outputs would be overwritten by the next
            micro-batch while this one still needs them.
    """
    if isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping):
        message = f"compile is {given!r}"
        raise OptionError(message, hint="give True, or options of torch.compile")
    options = dict(given)
    known = set(inspect.signature(torch.compile).parameters) - {"model", "disable"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise OptionError(
            f"compile: torch.compile has no {', '.join(map(str, unknown))}",
            hint=f"it has {', '.join(sorted(known))}",
        )
    inductor = options.get("options") or {}
    graphs = options.get("mode") in _GRAPHS or inductor.get("triton.cudagraphs")
    if graphs:
        raise OptionError(
            "compile would replay CUDA graphs, whose outputs the next micro-batch "
            "overwrites while this one's are still needed",
            hint='mode="default" or "max-autotune-no-cudagraphs"',
        )
    return options
