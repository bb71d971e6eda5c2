"""What the doctor finds, and the changes that would mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partitioner.doctor.case import Case

__all__ = ["REMOVED", "Edit", "Finding", "Rule", "Severity", "Symptom"]

Severity = Literal["error", "warning", "info"]
"""error: it does not start, or trains something else; info: worth knowing."""


class _Removed:
    """The value of an entry that is to be taken out."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED = _Removed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change of the configuration.

    Args:
        path: Keys from the top of the configuration to the entry.
        value: The new value, or ``REMOVED``.
    """

    path: tuple[str, ...]
    value: Any

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; an entry that goes has no value."""
        where = ".".join(self.path)
        if self.value is REMOVED:
            return {"path": where, "remove": True}
        return {"path": where, "value": self.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What one rule saw in one place."""

    where: str
    """Path in the configuration, a variable's name, or what was looked at."""
    why: str
    change: str
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None
    """None: the rule's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that the doctor knows.

    Args:
        code: Name of what it finds, in words with dashes.
        severity: How bad that is, unless a symptom says otherwise.
        look: Returns what is wrong in a case.
    """

    code: str
    severity: Severity
    look: Callable[[Case], Iterable[Symptom]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A symptom under the code of its rule."""

    code: str
    severity: Severity
    where: str
    why: str
    change: str
    edits: tuple[Edit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "code": self.code,
            "severity": self.severity,
            "where": self.where,
            "why": self.why,
            "change": self.change,
            "edits": [edit.to_dict() for edit in self.edits],
        }
