"""Every model of the zoo: captured, compared, cut, resized, and in bfloat16."""

from __future__ import annotations

import pytest

from tests.zoo.registry import ENTRIES, FAMILIES, MISSING
from tests.zoo.run import examine


@pytest.mark.parametrize("name", ENTRIES)
def test_cut_and_whole_model_agree(name: str):
    row = examine(ENTRIES[name])
    assert not row.faults, "\n".join(row.faults)


def test_no_two_entries_have_one_name():
    names = [entry.name for family in FAMILIES for entry in family.ENTRIES]
    assert len(names) == len(set(names)) == len(ENTRIES) + len(MISSING)


def test_few_entries_may_hold_a_heavy_leaf():
    assert sum(bool(entry.heavy_leaf) for entry in ENTRIES.values()) <= 5
