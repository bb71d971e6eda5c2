"""A configuration, a plan and a machine → findings, and a corrected configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deepspeed

from partitioner.doctor.case import Case
from partitioner.doctor.finding import Edit, Finding
from partitioner.doctor.fixing import edited
from partitioner.doctor.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.doctor.machine import Machine

__all__ = ["Examination", "examine"]

SCHEMA_VERSION = 1
_ORDER = ("error", "warning", "info")
_ROUNDS = 5
"""A correction can bring up another; rules follow on each other less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the doctor found in one configuration."""

    findings: tuple[Finding, ...]
    """The worst first."""
    fixed: dict[str, Any]
    """The configuration with all edits made."""
    edits: tuple[Edit, ...]
    """What was changed to get there."""
    machine: Machine | None
    deepspeed: str

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, ``schema_version`` 1."""
        counts = {
            severity: sum(f.severity == severity for f in self.findings)
            for severity in _ORDER
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "fx-partitioner doctor",
            "ok": self.ok,
            "deepspeed": self.deepspeed,
            "counts": counts,
            "findings": [finding.to_dict() for finding in self.findings],
            "edits": [edit.to_dict() for edit in self.edits],
            "machine": self.machine and self.machine.to_dict(),
        }


def examine(
    config: Mapping[str, Any],
    *,
    duplicates: tuple[str, ...] = (),
    plan: Mapping[str, Any] | None = None,
    stages: int | None = None,
    processes: int | None = None,
    total_steps: int | None = None,
    machine: Machine | None = None,
    version: str = deepspeed.__version__,
) -> Examination:
    """Look a configuration over.

    Args:
        config: The DeepSpeed configuration.
        duplicates: Keys that its file has more than once.
        plan: The content of the plan file that it is for.
        stages: Pipeline ranks, if there is no plan.
        processes: Processes of the run.
        total_steps: Optimizer steps of the run.
        machine: Facts of the machine that it is to run on.
        version: DeepSpeed's.

    Returns:
        The findings, and the configuration as it should be.
    """

    def findings(of: Mapping[str, Any], twice: tuple[str, ...]) -> tuple[Finding, ...]:
        case = Case(
            config=of,
            duplicates=twice,
            plan=plan,
            given_stages=stages,
            processes=processes,
            total_steps=total_steps,
            machine=machine,
            deepspeed=version,
        )
        return tuple(_findings(case))

    first = findings(config, duplicates)
    edits = _edits(first)
    fixed = edited(config, edits)
    for _ in range(_ROUNDS):
        more = _edits(findings(fixed, ()))
        if not more:
            break
        edits += more
        fixed = edited(fixed, more)
    return Examination(
        findings=tuple(sorted(first, key=lambda f: _ORDER.index(f.severity))),
        fixed=fixed,
        edits=edits,
        machine=machine,
        deepspeed=version,
    )


def _findings(case: Case) -> Iterable[Finding]:
    for rule in RULES:
        for symptom in rule.look(case):
            yield Finding(
                code=rule.code,
                severity=symptom.severity or rule.severity,
                where=symptom.where,
                why=symptom.why,
                change=symptom.change,
                edits=symptom.edits,
            )


def _edits(findings: Iterable[Finding]) -> tuple[Edit, ...]:
    """Return the changes, one for each entry: the first rule that knows it wins."""
    found: dict[tuple[str, ...], Edit] = {}
    for finding in findings:
        for edit in finding.edits:
            found.setdefault(edit.path, edit)
    return tuple(found.values())
