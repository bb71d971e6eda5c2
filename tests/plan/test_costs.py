"""Tests of partitioner.plan.costs: what modules, operators and nodes add up to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partitioner import OptionError, Plan, partition


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h).softmax(-1)


@pytest.fixture(scope="module")
def plan() -> Plan:
    ids = torch.zeros(2, 4, dtype=torch.long)
    return partition(Model(), 2, example_inputs=ids, device="cpu")


def named(document):
    return {row["name"]: row for row in document["rows"]}


BLOCK = 8 * 32 + 32 + 32 * 8 + 8


def test_a_module_counts_all_that_is_inside_it(plan):
    rows = named(plan.breakdown("module", depth=3))

    assert (
        list(rows)
        == [
            "(root's own code)",
            "embed",
            "blocks",
            *(f"blocks.{i}{part}" for i in range(3) for part in ("", ".up", ".down")),
            "head",
        ][: len(rows)]
    )
    assert rows["blocks"]["parameters"] == 3 * BLOCK
    assert rows["blocks.1"]["parameters"] == BLOCK
    assert rows["blocks.1"]["kind"] == "Block"
    assert rows["blocks.1.up"]["forward_flops"] == 2 * 8 * 8 * 32
    for key in ("forward_flops", "backward_flops", "saved_bytes", "calls"):
        inside = sum(rows[f"blocks.{i}"][key] for i in range(3))
        assert rows["blocks"][key] == inside
    assert rows["blocks.1"]["forward_s"] > rows["blocks.1.up"]["forward_s"] > 0


def test_what_is_deeper_counts_at_the_last_level_shown(plan):
    deep, flat = plan.breakdown("module", depth=3), plan.breakdown("module", depth=1)

    assert list(named(flat)) == ["(root's own code)", "embed", "blocks", "head"]
    assert named(flat)["blocks"] == named(deep)["blocks"]
    assert flat["total"] == deep["total"]


@pytest.mark.parametrize("by", ["operator", "node"])
def test_parts_that_do_not_overlap_add_up_to_the_total(plan, by):
    document = plan.breakdown(by)

    for key in ("forward_flops", "backward_flops", "saved_bytes", "calls"):
        total = sum(row[key] for row in document["rows"])
        assert total == document["total"][key] > 0
    total_s = plan.costed.total.forward_s
    assert document["total"]["forward_s"] == pytest.approx(total_s)


def test_a_tied_weight_counts_once_in_each_part_that_reads_it(plan):
    rows, total = named(plan.breakdown("module")), plan.breakdown("module")["total"]

    assert rows["embed"]["parameters"] == rows["head"]["parameters"] == 50 * 8
    assert total["parameters"] == 50 * 8 + 3 * BLOCK


def test_operators_are_functions_and_classes_of_layers(plan):
    rows = named(plan.breakdown("operator"))

    assert rows["Linear"]["calls"] == 3 * 2 + 1
    assert rows["gelu"]["calls"] == 3
    assert rows["Linear"]["forward_flops"] == 2 * 8 * (3 * 2 * 8 * 32 + 8 * 50)


def test_parts_say_which_stages_they_are_on(plan):
    rows = named(plan.breakdown("module"))

    assert rows["embed"]["stages"] == [0]
    assert rows["head"]["stages"] == [1]
    assert plan.breakdown("module")["total"]["stages"] == [0, 1]
    for row in plan.breakdown("node")["rows"]:
        assert len(row["stages"]) <= 1


@pytest.mark.parametrize(
    ("sort", "keys"),
    [
        ("forward", ["forward_s"]),
        ("backward", ["backward_s"]),
        ("memory", ["saved_bytes"]),
        ("flops", ["forward_flops", "backward_flops"]),
        ("params", ["parameters"]),
    ],
)
def test_rows_are_sorted_with_the_largest_first(plan, sort, keys):
    rows = plan.breakdown("node", sort=sort)["rows"]

    values = [sum(row[key] for key in keys) for row in rows]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "layer"}, "by is 'layer'"),
        ({"by": "module", "sort": "name"}, "sort is 'name'"),
        ({"by": "module", "depth": 0}, "depth is 0"),
    ],
)
def test_what_is_no_choice_is_refused(plan, options, text):
    with pytest.raises(OptionError, match=text):
        plan.breakdown(**options)
