"""A trace file, checked: what every rank did in some training steps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partitioner.errors import TraceError
from partitioner.runtime.timeline.events import KIND, SCHEMA_VERSION

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["Interval", "Trace"]

_PASSES = frozenset({"forward", "backward"})
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Arguments(_Strict):
    step: _Count
    stage: _Count
    micro_batch: _Count
    peers: list[int] = []


class _Slice(_Strict):
    name: str
    cat: str
    ph: Literal["X"]
    pid: _Count
    ts: Annotated[float, Field(allow_inf_nan=False)]
    dur: _Seconds
    args: _Arguments


class StageForecast(_Strict):
    """What the plan says of one stage, for one micro-batch."""

    forward_s: _Seconds
    backward_s: _Seconds
    recompute_s: _Seconds


class Forecast(_Strict):
    """What the plan says of a step."""

    schedule: str
    step_s: _Seconds
    bubble_share: _Seconds
    stages: list[StageForecast]


class GpuUse(_Strict):
    """How busy a rank's GPU was, in shares of time; or why nobody knows."""

    not_sampled: str = ""
    samples: _Count = 0
    mean: _Seconds = 0.0
    p10: _Seconds = 0.0
    p50: _Seconds = 0.0
    p90: _Seconds = 0.0


class About(_Strict):
    """Facts of the run."""

    kind: str
    schema_version: int
    ranks: Annotated[int, Field(ge=1)]
    stages: Annotated[int, Field(ge=1)]
    micro_batches: Annotated[int, Field(ge=1)]
    device: str
    fingerprint: str = ""
    gpu_use: list[GpuUse] = []
    """By rank; empty in files from before there was such a thing."""
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Something that a rank did."""

    rank: int
    kind: str
    """An instruction in words, ``"recompute"`` or ``"module"``."""
    name: str
    """Of a module its path."""
    step: int
    stage: int
    micro_batch: int
    start_s: float
    end_s: float
    peers: tuple[int, ...]
    """Stages at the other end of a message."""

    @property
    def took_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What every rank did in some training steps, on one clock."""

    about: About
    intervals: tuple[Interval, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a file of ``trace_steps`` or ``plan.trace``.

        Raises:
            TraceError: It cannot be read, or is no such file.
        """
        document = _read(Path(path))
        try:
            about = About.model_validate(document["otherData"])
            measured = [
                _Slice.model_validate(event)
                for event in document["traceEvents"]
                if event.get("ph") == "X" and "step" in event.get("args", {})
            ]
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            message = f"{path} is no whole trace: {where}: {first['msg']}"
            raise TraceError(message, hint="record it again") from error
        except (AttributeError, KeyError, TypeError) as error:
            message = f"{path} is no trace file: {type(error).__name__}: {error}"
            raise TraceError(message, hint="record one with plan.trace(…)") from error
        found = cls(about=about, intervals=tuple(map(_interval, measured)))
        found._check(path)
        return found

    def _check(self, path: str | os.PathLike[str]) -> None:
        """Refuse what nothing can be said about.

        Raises:
            TraceError: A stage has no forward or no backward, or is beyond the last.
        """
        stages = self.about.stages
        for kind in sorted(_PASSES):
            seen = {each.stage for each in self.intervals if each.kind == kind}
            missing = sorted(set(range(stages)) - seen)
            if missing or not seen <= set(range(stages)):
                what = f"no {kind} of stage {missing[0]}" if missing else "more stages"
                message = f"{path} has {what}; it says that it has {stages} stages"
                raise TraceError(message, hint="record it again")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        message = f"{path} is no JSON: {error}"
        raise TraceError(message, hint="is it complete?") from error
    about = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(about, dict) or about.get("kind") != KIND:
        hint = "record one with plan.trace(engine, path)"
        raise TraceError(f"{path} is no trace of a run", hint=hint)
    if about.get("schema_version") != SCHEMA_VERSION:
        found = about.get("schema_version")
        message = f"{path} has schema version {found}, not {SCHEMA_VERSION}"
        raise TraceError(message, hint="record it again with this version")
    found_document: Mapping[str, Any] = document
    return found_document


def _interval(event: _Slice) -> Interval:
    start_s = event.ts / 1e6
    return Interval(
        rank=event.pid,
        kind=event.cat,
        name=event.name,
        step=event.args.step,
        stage=event.args.stage,
        micro_batch=event.args.micro_batch,
        start_s=start_s,
        end_s=math.fsum((start_s, event.dur / 1e6)),
        peers=tuple(event.args.peers),
    )
