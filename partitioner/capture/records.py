"""What one recording consists of, before it becomes an fx graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from partitioner.graph import Region, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = [
    "Call",
    "Decision",
    "DeviceRef",
    "DroppedRef",
    "Recording",
    "Ref",
    "SizeReading",
    "SpanRecord",
]

Path = tuple[tuple[str, Any], ...]
"""Steps into a nested value: ("item", key) or ("attr", name)."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in an argument tree: result ``path`` of call number ``call``."""

    call: int
    path: Path = ()


@dataclass(frozen=True, slots=True)
class DroppedRef:
    """A tensor that is no part of the result: of a call that was dropped, by its id."""

    call: str
    path: Path = ()


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """The device of whichever stage runs the call, in place of the recorded one."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One recorded operation."""

    id: str
    kind: Literal["input", "weight", "constant", "function", "method", "module"]
    target: str | Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: list[tuple[Path, TensorMeta]] = field(default_factory=list)
    module: str = ""
    source: str = ""
    region: Region = field(default_factory=Region)
    writes: tuple[int, ...] = ()
    eval_storages: tuple[int, ...] = ()
    """Storages of the outputs in eval mode, where dropout hands its argument on."""
    eval_writes: tuple[int, ...] = ()
    draws: bool = False
    differentiates: bool = False
    """Whether it computes gradients in its forward: a leaf may."""
    checks: bool = False
    """Whether it raises on some values, and does nothing else."""
    draw_key: str = ""
    saved: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage that autograd keeps for it."""
    tensor: torch.Tensor | None = None
    """The value of a ``constant``."""


@dataclass(slots=True, kw_only=True)
class SpanRecord:
    """One module call that was recorded through: calls ``start`` to ``end``."""

    path: str
    call: int
    start: int
    end: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    region: Region
    parent: int | None
    opened_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One comparison of sizes that Python made, or one rounding it relied on."""

    relation: str
    left: Any
    right: Any
    outcome: bool
    module: str
    source: str
    rounded: bool = False
    """Python did not compare: it rounded, and the result may go anywhere."""


@dataclass(slots=True, kw_only=True)
class SizeReading:
    """What one forward read of sizes and did by them.

    Expressions are those of :mod:`partitioner.runtime.guards`, with ``("read", i)`` for
    the i-th read.
    """

    reads: list[tuple[Ref | DroppedRef, int]] = field(default_factory=list)
    """(tensor, dimension)"""
    decisions: list[Decision] = field(default_factory=list)
    escapes: dict[str, Any] = field(default_factory=dict)
    """Line at which a size becomes a number that is not followed → expression."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """One execution of the forward: calls in program order, module calls, result."""

    calls: list[Call]
    spans: list[SpanRecord]
    output: Any
    notes: list[str] = field(default_factory=list)
    weight_storages: dict[int, str] = field(default_factory=dict)
    """Storage number → name of the parameter or buffer it belongs to."""
    sizes: SizeReading = field(default_factory=SizeReading)
    dropped_shapes: dict[DroppedRef, tuple[int, ...]] = field(default_factory=dict)
    counting: set[str] = field(default_factory=set)
    """Paths of leaves that changed Python numbers of their own."""
    device_reads: list[str] = field(default_factory=list)
    """Where Python asked for the kind of device, in words."""

    def copy(self) -> Recording:
        """Copy what merging changes."""
        return replace(
            self,
            calls=[replace(call) for call in self.calls],
            spans=[replace(span) for span in self.spans],
        )
