"""What one recording consists of, before it becomes an fx graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from partitioner.graph import Region, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["Call", "DeviceRef", "Recording", "Ref", "SpanRecord"]

Path = tuple[tuple[str, Any], ...]
"""Steps into a nested value: ("item", key) or ("attr", name)."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in an argument tree: result ``path`` of call number ``call``."""

    call: int
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
    checks: bool = False
    """Whether it raises on some values, and does nothing else."""
    draw_key: str = ""
    saved: list[tuple[int, int]] = field(default_factory=list)
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


@dataclass(slots=True, kw_only=True)
class Recording:
    """One execution of the forward: calls in program order, module calls, result."""

    calls: list[Call]
    spans: list[SpanRecord]
    output: Any
    notes: list[str] = field(default_factory=list)
    weight_storages: dict[int, str] = field(default_factory=dict)
    """Storage number → name of the parameter or buffer it belongs to."""

    def copy(self) -> Recording:
        """Copy what merging changes."""
        return replace(
            self,
            calls=[replace(call) for call in self.calls],
            spans=[replace(span) for span in self.spans],
        )
