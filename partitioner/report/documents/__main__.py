"""Write the JSON schemas anew: ``python -m partitioner.report.documents``."""

from __future__ import annotations

import json
from pathlib import Path

from partitioner.report.documents import DOCUMENTS, made_schema

__all__: list[str] = []

if __name__ == "__main__":
    for command in DOCUMENTS:
        path = Path(__file__).with_name(f"{command}.schema.json")
        text = json.dumps(made_schema(command), indent=2, sort_keys=True)
        path.write_text(f"{text}\n", encoding="utf-8")
