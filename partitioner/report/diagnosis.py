"""A doctor's dictionary → the findings that people read, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["diagnosis_report"]

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def diagnosis_report(document: Mapping[str, Any]) -> RenderableType:
    """Build the report of an examination.

    Args:
        document: What ``Examination.to_dict()`` returns (schema version 1).

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    parts: list[RenderableType] = []
    for finding in document["findings"]:
        parts += [_heading(finding), _body(finding), Text()]
    if document["machine"]:
        parts += [_machine(document["machine"]), Text()]
    return Group(*parts, Text(_summary(document), style="bold"))


def _heading(finding: Mapping[str, Any]) -> Text:
    severity = finding["severity"]
    heading = Text(severity, style=_STYLES[severity])
    heading.append(f" {finding['code']}: ", style="bold")
    heading.append(finding["where"])
    return heading


def _body(finding: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len("  change"))
    grid.add_column(overflow="fold")
    grid.add_row("  why", Text(finding["why"]))
    mark = " [--fix]" if finding["edits"] else ""
    grid.add_row("  change", Text(finding["change"] + mark))
    return grid


def _machine(facts: Mapping[str, Any]) -> Table:
    """Build the lines that say what was read; nothing for what could not be."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len("  change"))
    grid.add_column(overflow="fold")
    for label, text in _facts(facts):
        grid.add_row(Text(f"  {label}"), Text(text))
    return grid


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["cores"] is not None:
        nodes = facts["node_cores"]
        spread = f" on {len(nodes)} NUMA node{'s' * (len(nodes) > 1)}" if nodes else ""
        yield "cores", f"{len(facts['cores'])}{spread}"
    if facts["accelerators"] is not None:
        found = [_accelerator(one) for one in facts["accelerators"]]
        yield "GPUs", "\n".join(found) or "none on the PCI bus"
    if facts["interfaces"] is not None:
        yield "network", ", ".join([*facts["interfaces"], *(facts["infiniband"] or ())])
    if facts["shared_memory_bytes"] is not None:
        yield "/dev/shm", format_bytes(facts["shared_memory_bytes"])


def _accelerator(one: Mapping[str, Any]) -> str:
    node = "unknown" if one["numa_node"] is None else one["numa_node"]
    lanes = f"{one['width']} of {one['max_width']}" if one["width"] else "unknown"
    return f"{one['vendor']} {one['address']}: NUMA node {node}, PCIe lanes {lanes}"


def _summary(document: Mapping[str, Any]) -> str:
    counts = document["counts"]
    words = {"error": "errors", "warning": "warnings", "info": "notes"}
    found = ", ".join(
        f"{counts[severity]} {word if counts[severity] != 1 else word[:-1]}"
        for severity, word in words.items()
    )
    fixable = sum(bool(finding["edits"]) for finding in document["findings"])
    mended = f"; --fix mends {fixable}" if fixable else ""
    return f"{found} (DeepSpeed {document['deepspeed']}){mended}"
