"""Tests of partitioner.plan.outline: which boxes there are, and what flows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from partitioner import Plan, partition
from partitioner.plan.outline import OUTSIDE, outline

WIDTH = 8
BYTES = 2 * WIDTH * 4  # one activation of two rows


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Tower(nn.Module):
    """Six blocks, of which the first weight is tied to the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) + shift


def planned(**options: Any) -> Plan:
    torch.manual_seed(0)
    inputs = (torch.zeros(2, WIDTH), torch.zeros(2, WIDTH))
    given = {"pin": {"blocks.3": 0, "blocks.4": 1}, "device": "cpu", **options}
    return partition(Tower(), 2, example_inputs=inputs, **given)


def names(item: dict[str, Any]) -> list[str]:
    return [child["name"] for child in item["children"]]


def flows(item: dict[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    return {
        (flow["from"], flow["to"]): (flow["bytes"], flow["crossing_bytes"])
        for flow in item["flows"]
        if "tie" not in flow
    }


def test_equal_neighbours_on_one_stage_are_one_box():
    root = outline(planned())
    expected = ["x", "shift", "first", "blocks.0…3", "blocks.4", "blocks.5"]
    assert names(root) == [*expected, "head", "add"]
    boxes = [child["box"] for child in root["children"]]
    assert boxes == [
        *["input", "input", "module", "group"],
        *["module", "module", "module", "operations"],
    ]
    assert [child["stages"] for child in root["children"][2:]] == [
        *[[0], [0]],
        *[[1], [1], [1], [1]],
    ]
    group = root["children"][3]
    assert names(group) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert names(group["children"][0]) == ["up", "down", "add"]


def test_flows_count_every_tensor_once_and_say_what_crosses():
    root = outline(planned())
    assert flows(root) == {
        (0, 2): (BYTES, 0),
        (2, 3): (BYTES, 0),
        (3, 4): (BYTES, BYTES),
        (4, 5): (BYTES, 0),
        (5, 6): (BYTES, 0),
        (6, 7): (BYTES, 0),
        (1, 7): (BYTES, 0),
    }
    block = root["children"][3]["children"][0]
    assert flows(block) == {
        (OUTSIDE, 0): (BYTES, 0),
        (0, 1): (BYTES, 0),
        (OUTSIDE, 2): (BYTES, 0),
        (1, 2): (BYTES, 0),
        (2, OUTSIDE): (BYTES, 0),
    }


def test_a_tie_joins_the_boxes_that_read_it():
    root = outline(planned())
    ties = [flow for flow in root["flows"] if "tie" in flow]
    assert ties == [{"from": 2, "to": 6, "tie": "first.weight"}]
    assert root["children"][2]["ties"] == ["first.weight"]
    assert root["children"][3]["ties"] == []


def test_boxes_add_up_to_the_model():
    plan = planned()
    root = outline(plan)
    children = root["children"]
    assert root["forward_s"] == sum(child["forward_s"] for child in children)
    assert root["forward_flops"] == plan.costed.total.forward_flops
    assert children[4]["parameters"] == 2 * (WIDTH * WIDTH + WIDTH)
    assert children[4]["kind"] == "Block"
    assert "test_outline.py:" in children[4]["source"]


def test_recomputed_boxes_say_so():
    root = outline(planned(checkpointing="all"))
    shares = {child["name"]: child["recomputed"] for child in root["children"]}
    assert shares["blocks.0…3"] == 1
    assert shares["first"] == 0
    assert 0 < root["recomputed"] < 1


def test_a_module_called_twice_is_two_boxes():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Block(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.block(x)))

    plan = partition(Twice(), 1, example_inputs=torch.zeros(2, WIDTH), device="cpu")
    assert names(outline(plan)) == ["x", "block", "block (call 2)", "head"]


def test_parts_of_one_result_stay_with_the_layer_that_made_them():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            states, (last, _) = self.lstm(x)
            return self.head(states) + last.sum()

    inputs = torch.zeros(2, 2, WIDTH)
    plan = partition(Recurrent(), 1, example_inputs=inputs, device="cpu")
    assert names(outline(plan)) == ["x", "lstm", "head", "sum, add"]
