"""What pages say exists: commands, options, public names, files that are linked to."""

from __future__ import annotations

import re
import shlex

import click
import pytest

import partitioner
from partitioner.cli import main
from tests.docs.blocks import DOCS, blocks, pages

COMMAND = re.compile(r"^partitioner (\w[^|#\n]*)", re.MULTILINE)


def commands(page: str) -> list[str]:
    """Return the command lines of a page, continued lines joined."""
    text = "\n".join(block.text for block in blocks(page, "sh"))
    return [match[1] for match in COMMAND.finditer(text.replace("\\\n", " "))]


@pytest.mark.parametrize("page", [page for page in pages() if commands(page)])
def test_commands_have_the_options_that_pages_give_them(page: str) -> None:
    assert isinstance(main, click.Group)
    for line in commands(page):
        name, *arguments = shlex.split(line)
        context = click.Context(main.commands[name], info_name=name)
        # Raises for an option that the command does not have, or without its value.
        main.commands[name].make_parser(context).parse_args(arguments)


def test_some_pages_have_commands() -> None:
    assert sum(len(commands(page)) for page in pages()) > 15


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"partitioner\.(\w+)(?:\(\))?$", text, re.MULTILINE))
    errors = set(partitioner.errors.__all__)
    assert "automodule:: partitioner.errors" in text
    assert set(partitioner.__all__) - errors - {"__version__"} <= listed


@pytest.mark.parametrize("page", pages())
def test_links_out_of_the_folder_lead_somewhere(page: str) -> None:
    """Links between pages are checked where the site is built."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((\.\./[^)#]+)", text):
        assert (DOCS / link).exists(), link
