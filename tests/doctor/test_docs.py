"""The page on failures begins with messages and names codes that exist."""

from __future__ import annotations

import re
from pathlib import Path

from partitioner.doctor.rules import RULES

TEXT = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text("utf-8")


def test_every_failure_begins_with_what_people_see():
    _, *sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    assert len(sections) == 5
    for section in sections:
        title, first, *_ = filter(None, section.splitlines())
        assert first.startswith("> `"), title


def test_codes_in_brackets_exist():
    groups = re.findall(r"\[((?:`[a-z0-9-]+`(?:, )?)+)\]", TEXT)
    named = {code for group in groups for code in re.findall(r"`([^`]+)`", group)}
    assert len(named) > 25
    assert named <= {rule.code for rule in RULES}
