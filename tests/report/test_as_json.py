"""Tests of partitioner.report.as_json."""

from __future__ import annotations

import json
import math

import pytest

from partitioner.report.as_json import as_json
from tests.report.documents import plan_document


def test_reads_back_unchanged() -> None:
    document = plan_document()
    assert json.loads(as_json(document)) == document


def test_order_of_keys_does_not_matter() -> None:
    document = plan_document()
    reordered = dict(reversed(document.items()))
    assert list(reordered) != list(document)
    assert as_json(reordered) == as_json(document)


def test_numbers_that_json_lacks_become_strings() -> None:
    text = as_json({"errors": (math.nan, math.inf, -math.inf, 1.5)})
    assert json.loads(text) == {"errors": ["nan", "inf", "-inf", 1.5]}


def test_text_is_ascii_and_ends_in_one_newline() -> None:
    assert as_json({"name": "h.0…5"}) == '{\n  "name": "h.0\\u20265"\n}\n'


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        as_json({"value": 1j})
