"""What ``--json`` prints, as types, and the JSON schemas that are made of them.

The schemas lie next to this file, one for each command that prints a document, as
``inspect.schema.json``. Equal ``schema_version``: equal meaning of every key.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from partitioner.report.documents.examination import Examination
from partitioner.report.documents.reports import (
    Inspection,
    Replanning,
    Tuning,
    Verification,
)
from partitioner.report.documents.use import RunUse

__all__ = ["DOCUMENTS", "made_schema", "schema"]

DOCUMENTS: dict[str, Any] = {
    "inspect": Inspection,
    "verify": Verification,
    "tune": Tuning,
    "trace": RunUse,
    "replan": Replanning,
    "doctor": Examination,
}
"""Command → the type of its document."""


def schema(command: str) -> dict[str, Any]:
    """Return the published JSON schema of what a command prints with ``--json``.

    Args:
        command: A key of ``DOCUMENTS``.
    """
    place = files(__name__) / f"{command}.schema.json"
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return found


def made_schema(command: str) -> dict[str, Any]:
    """Make the JSON schema of a command's document from its type.

    Args:
        command: A key of ``DOCUMENTS``.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TypeAdapter(DOCUMENTS[command]).json_schema(),
        "title": f"partitioner {command} --json",
    }
