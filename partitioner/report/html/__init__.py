"""A plan's page: one HTML file with pictures, which needs nothing from the network."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from partitioner.errors import PartitionerError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["html_page", "require_libraries"]

_LIBRARIES = {
    "altair": "altair",
    "jinja2": "jinja2",
    "vl_convert": "vl-convert-python",
}
"""What the extra ``[html]`` installs, by the names that Python imports."""


def html_page(document: Mapping[str, Any]) -> str:
    """Write the page of a plan.

    Args:
        document: What ``plan_page.page_document`` returns.

    Returns:
        HTML with all its styles, scripts and data.

    Raises:
        PartitionerError: A library of the extra ``[html]`` is missing.
    """
    require_libraries()
    from partitioner.report.html.page import rendered  # noqa: PLC0415

    return rendered(document)


def require_libraries() -> None:
    """Refuse to go on without the libraries that draw the pictures.

    Raises:
        PartitionerError: Names what is missing.
    """
    missing = [name for module, name in _LIBRARIES.items() if not find_spec(module)]
    if missing:
        message = f"an HTML report needs {', '.join(missing)}, not installed here"
        raise PartitionerError(message, hint="pip install 'fx-partitioner[html]'")
