"""Illegal placements are refused with every fault by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx

from partitioner.capture import capture
from partitioner.emit import Placement, emit
from partitioner.emit.placement import pieces
from partitioner.errors import EmitError
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from tests.capture import toys
from tests.captured import BATCH, captured, seeded, two_stages


def placed(graph: ModelGraph) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if info(node).kind == "compute"]


def faults(graph: ModelGraph, placement: Placement) -> list[str]:
    with pytest.raises(EmitError) as caught:
        emit(graph, placement)
    first, *rest = str(caught.value).splitlines()
    assert first == "the placement is not legal:"
    return [line.removeprefix("- ") for line in rest]


def test_every_fault_is_named_at_once():
    graph = captured("mlp")
    nodes = placed(graph)
    stage_of = dict.fromkeys(nodes, 0)
    stage_of[nodes[0]] = 2
    stage_of[nodes[1]] = 7
    del stage_of[nodes[-1]]
    found = faults(graph, Placement(stages=3, stage_of=stage_of, block_of={}))
    assert found == [
        "1@0 is on stage 7 of 3",
        "3@0 has no stage",
        "stage 1 is empty",
        "2@0 runs before 1@0, which it reads",
    ]


def test_data_may_not_flow_backwards():
    graph = captured("gpt2")
    placement = two_stages(graph, "transformer.h.1.attn@0")
    swapped = {node: 1 - stage for node, stage in placement.stage_of.items()}
    found = faults(graph, replace(placement, stage_of=swapped))
    assert found
    assert all("runs before" in fault for fault in found)


def test_a_long_list_of_faults_is_cut_off():
    graph = captured("gpt2")
    nothing = Placement(stages=2, stage_of={}, block_of={})
    found = faults(graph, nothing)
    assert len(found) == 21
    assert found[-1] == f"and {len(placed(graph)) + 2 - 20} more"


def test_order_without_data_counts():
    graph = capture(seeded(toys.WritesView()), BATCH)
    nodes = {info(node).id: node for node in placed(graph)}
    stage_of = dict.fromkeys(nodes.values(), 0)
    for late in ("@0:2", "second@0"):  # reads y before it is written
        stage_of[nodes[late]] = 1
    last = max(nodes, key=lambda name: placed(graph).index(nodes[name]))
    stage_of[nodes[last]] = 1
    found = faults(graph, Placement(stages=2, stage_of=stage_of, block_of={}))
    assert any("@0:3 runs before @0:2, and one of them writes" in f for f in found)


def test_pieces_follow_blocks_and_stages():
    graph = captured("mlp")
    nodes = placed(graph)
    block_of = {nodes[1]: "a", nodes[2]: "a"}
    stage_of = {nodes[0]: 0, nodes[1]: 0, nodes[2]: 0, nodes[3]: 1}
    placement = Placement(stages=2, stage_of=stage_of, block_of=block_of)
    found = [(p.stage, p.block, len(p.nodes)) for p in pieces(graph, placement)]
    assert found == [(0, "", 1), (0, "a", 2), (1, "", 1)]


def test_a_block_on_two_stages_is_two_pieces():
    graph = captured("mlp")
    nodes = placed(graph)
    stage_of = {node: int(i > 1) for i, node in enumerate(nodes)}
    placement = Placement(
        stages=2, stage_of=stage_of, block_of=dict.fromkeys(nodes, "a")
    )
    assert [p.stage for p in pieces(graph, placement)] == [0, 1]


def test_a_block_with_a_part_only_of_what_is_written_is_not_recomputed():
    class CountsTwice(toys.Toy):
        steps: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            h = self.first(x)
            self.steps += 1
            return self.second(h) * self.steps

    graph = capture(seeded(CountsTwice()), BATCH)
    nodes = {info(node).id: node for node in placed(graph)}
    placement = Placement(
        stages=1,
        stage_of=dict.fromkeys(nodes.values(), 0),
        block_of={node: "a" for name, node in nodes.items() if name != "first@0"},
    )
    found = pieces(graph, placement)
    assert len(found) == 3
    assert not any(piece.block for piece in found)
    assert verify(graph, placement, [BATCH]).ok
