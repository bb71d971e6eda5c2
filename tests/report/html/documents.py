"""A page's document for a small plan, to be changed by hand."""

from __future__ import annotations

import copy
from typing import Any

from tests.report.html.plans import document_of


def page_of_gpt2(**changes: Any) -> dict[str, Any]:
    """The document of a GPT-2 on three stages, with ``changes`` over its top level."""
    found = copy.deepcopy(document_of("gpt-2"))
    assert changes.keys() <= found.keys()
    return {**found, **changes}
