from __future__ import annotations

import pytest

from partitioner.report import breakdown_text
from tests.report.documents import plan_document


def row(name, **changes):
    return {
        "name": name,
        "kind": "Block",
        "calls": 3,
        "source": "",
        "stages": [0],
        "parameters": 1_500,
        "forward_flops": 10**9,
        "backward_flops": 2 * 10**9,
        "forward_s": 1e-3,
        "backward_s": 2e-3,
        "saved_bytes": 2**20,
        **changes,
    }


def text(by="module", sort=None, **options):
    rows = [
        row("h", stages=[0, 1], forward_s=2e-3, backward_s=4e-3),
        row("h.0", kind="[red]Odd"),
        row("h.1", stages=[]),
    ]
    total = row("", forward_s=4e-3, backward_s=8e-3)
    document = {"by": by, "sort": sort, "total": total, "rows": rows}
    return breakdown_text({**plan_document(), "breakdown": document}, **options)


def test_a_row_is_one_part_with_its_share_of_the_time():
    lines = [" ".join(line.split()) for line in text().splitlines()]

    assert "h Block 0–1 1.50 K 3.00 G 2.00 ms 4.00 ms 1.00 MiB 50.0 %" in lines
    assert "total 0 1.50 K 3.00 G 4.00 ms 8.00 ms 1.00 MiB 100 %" in lines


def test_modules_are_indented_below_what_holds_them():
    lines = text().splitlines()

    (outer,) = [line for line in lines if "h Block" in line]
    (inner,) = [line for line in lines if "1 Block" in line]
    assert inner.index("1") == outer.index("h") + 2


def test_sorted_rows_have_whole_names():
    assert "h.0 [red]Odd" in text(sort="memory")
    assert "h.0" not in text()


def test_operators_say_how_often_they_run():
    assert "Operator" in text(by="operator")
    assert "Calls" in text(by="operator")
    assert "Stage " not in text(by="operator")


@pytest.mark.parametrize("by", ["module", "operator", "node"])
def test_a_breakdown_fits_the_terminal(by):
    assert max(map(len, text(by=by).splitlines())) <= 80
