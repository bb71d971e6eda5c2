"""Tests of partitioner.report.console."""

from __future__ import annotations

import pytest
from rich.text import Text

from partitioner.report.console import to_text


def test_environment_cannot_add_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "7")
    assert to_text(Text("warning: red", style="bold red")) == "warning: red\n"


def test_width_is_obeyed() -> None:
    text = to_text(Text("one two three four"), width=9)
    assert text == "one two\nthree\nfour\n"


def test_brackets_are_not_markup_and_blanks_are_trimmed() -> None:
    assert to_text(Text("dict[red]   \n\n")) == "dict[red]\n"
