"""The document of ``doctor``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import with_config
from typing_extensions import NotRequired, TypedDict

from partitioner.report.documents.plan import CLOSED

__all__ = ["Examination"]


@with_config(CLOSED)
class Edit(TypedDict):
    """One change of a configuration: a new value, or an entry that goes."""

    path: str
    value: NotRequired[Any]
    remove: NotRequired[Literal[True]]


@with_config(CLOSED)
class Finding(TypedDict):
    """Something in a configuration."""

    code: str
    severity: Literal["error", "warning", "info"]
    where: str
    why: str
    change: str
    edits: list[Edit]


@with_config(CLOSED)
class Counts(TypedDict):
    """Findings by severity."""

    error: int
    warning: int
    info: int


@with_config(CLOSED)
class Accelerator(TypedDict):
    """One GPU on the PCI bus."""

    address: str
    vendor: str
    numa_node: int | None
    speed: str | None
    max_speed: str | None
    width: int | None
    max_width: int | None


@with_config(CLOSED)
class Machine(TypedDict):
    """Facts of one machine, with ``--env``; null: could not be read."""

    environment: dict[str, str]
    cores: list[int] | None
    node_cores: dict[str, list[int]] | None
    accelerators: list[Accelerator] | None
    interfaces: list[str] | None
    infiniband: list[str] | None
    shared_memory_bytes: int | None
    locked_memory_bytes: int | None
    governor: str | None
    numa_balancing: bool | None
    compiler: str | None
    unknown: list[str]


@with_config(CLOSED)
class Examination(TypedDict):
    """What the doctor found."""

    schema_version: Literal[1]
    kind: Literal["fx-partitioner doctor"]
    ok: bool
    deepspeed: str
    counts: Counts
    findings: list[Finding]
    edits: list[Edit]
    machine: Machine | None
