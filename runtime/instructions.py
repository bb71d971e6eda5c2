"""The instructions of an engine's schedule, to be watched from outside for a while."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from partitioner.runtime.segment import Segment

__all__ = ["stage_of", "watched_instructions", "watched_recomputation"]

_MAP = "_INSTRUCTION_MAP"  # DeepSpeed has no public name for it


@contextmanager
def watched_instructions(
    engine: Any, watch: Callable[[type, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Let something stand around every instruction that an engine runs meanwhile.

    Args:
        engine: A pipeline engine.
        watch: Takes an instruction's class and what runs it (a function of the engine
            and the instruction's arguments), returns what shall run instead.
    """
    own = vars(engine).get(_MAP)
    original = getattr(engine, _MAP)
    setattr(engine, _MAP, {kind: watch(kind, run) for kind, run in original.items()})
    try:
        yield
    finally:
        if own is None:
            delattr(engine, _MAP)  # the class's is there again
        else:
            setattr(engine, _MAP, own)


@contextmanager
def watched_recomputation(
    layer: Segment, around: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Let something stand around what a layer computes again, meanwhile.

    Whoever stood there before stays, further out.

    Args:
        layer: One of a pipeline's.
        around: Makes the context of one recomputation.
    """
    before = layer.around_recomputation

    @contextmanager
    def both() -> Iterator[None]:
        with before() if before else nullcontext(), around():
            yield

    layer.around_recomputation = both
    try:
        yield
    finally:
        layer.around_recomputation = before


def stage_of(engine: Any, phase: int) -> int:
    """Return the stage that an instruction of a phase is for.

    Args:
        engine: A pipeline engine.
        phase: Under DualPipeV 0 on the way out and 1 on the way back, else 0.
    """
    mine: int = engine.stage_id
    if not isinstance(engine, DualPipeVEngine) or phase == 0:
        return mine
    return 2 * int(engine.num_stages) - 1 - mine
