"""How Sphinx makes the site; ``make docs`` runs it, with warnings as errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "fx-partitioner"
author = "the fx-partitioner maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]

html_theme = "furo"
html_title = f"fx-partitioner {release}"
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False


def _contents(_app: Sphinx, name: str, text: list[str]) -> None:
    """Make the first page, and the contents of the site, of the list in README.md.

    The list is for readers of the repository; a second one would grow apart from it.
    """
    if name == "index":
        listed = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
        text[0] = f"{listed}\n{_trees(listed)}\n"
    # Pages beside this folder are no part of the site.
    text[0] = re.sub(r"\[([^]]*)\]\(\.\./(\w+\.md)\)", r"`\2`", text[0])


def _trees(listed: str) -> str:
    trees = []
    for section in re.split(r"^## ", listed, flags=re.MULTILINE)[1:]:
        caption, _, body = section.partition("\n")
        pages = re.findall(r"^- \[.*?\]\((\w+)\.md\)", body, flags=re.MULTILINE)
        lines = [f":caption: {caption}", ":hidden:", "", *pages]
        trees.append("\n".join(["```{toctree}", *lines, "```"]))
    return "\n\n".join(trees)


def setup(app: Sphinx) -> None:
    """Register what is special to this site."""
    app.connect("source-read", _contents)
