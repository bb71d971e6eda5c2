"""Compare two recordings: the same calls, module calls and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partitioner.capture.tree import trees_differ

if TYPE_CHECKING:
    from partitioner.capture.records import Call, Recording, SpanRecord

__all__ = ["MismatchError", "compare_structure"]


class MismatchError(Exception):
    """Two recordings differ in more than plain arguments.

    Args:
        reason: What differs.
        position: Number of the first call that differs.
        source: ``file:line`` of that call.
        size: Number of the free size that is to blame, if that is known.
    """

    def __init__(
        self, reason: str, position: int, source: str, *, size: int | None = None
    ) -> None:
        super().__init__(f"{reason} at {source or 'an unknown line'}")
        self.reason = reason
        self.position = position
        self.source = source
        self.size = size


def compare_structure(first: Recording, second: Recording) -> None:
    """Check that two recordings have the same calls, module calls and outputs.

    Raises:
        MismatchError: At the first call that differs.
    """
    for index, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)):
        _compare_calls(index, a, b)
    shorter = min(len(first.calls), len(second.calls))
    if len(first.calls) != len(second.calls):
        _raise_longer(first, second, shorter)
    for span_a, span_b in zip(first.spans, second.spans, strict=False):
        if _place(span_a) != _place(span_b):
            raise MismatchError(f"the call of {span_a.path} differs", span_a.start, "")
    if len(first.spans) != len(second.spans):
        raise MismatchError("the number of module calls differs", shorter, "")
    if trees_differ(first.output, second.output):
        raise MismatchError("the model's output differs", shorter, "")


def _compare_calls(index: int, a: Call, b: Call) -> None:
    if (a.id, a.kind, a.target) != (b.id, b.kind, b.target):
        raise MismatchError(f"{_name(a)} became {_name(b)}", index, a.source)
    if [path for path, _ in a.outputs] != [path for path, _ in b.outputs]:
        raise MismatchError(f"{_name(a)} has other results", index, a.source)
    if a.region != b.region:
        raise MismatchError(f"{_name(a)} runs under other modes", index, a.source)
    if a.kind == "constant" and not _same_constant(a, b):
        raise MismatchError("a tensor made outside torch differs", index, a.source)


def _raise_longer(first: Recording, second: Recording, shorter: int) -> None:
    longer = first if len(first.calls) > len(second.calls) else second
    extra = longer.calls[shorter]
    raise MismatchError(
        f"{_name(extra)} runs in only one of them", shorter, extra.source
    )


def _place(span: SpanRecord) -> tuple[str, int, int, int]:
    return span.path, span.call, span.start, span.end


def _name(call: Call) -> str:
    target = call.target
    text = target if isinstance(target, str) else getattr(target, "__name__", "call")
    return f"{text} ({call.id})"


def _same_constant(first: Call, second: Call) -> bool:
    a, b = first.tensor, second.tensor
    return a is not None and b is not None and a.shape == b.shape and torch.equal(a, b)
