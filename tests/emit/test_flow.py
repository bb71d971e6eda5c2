"""What crosses between segments: relays, what is rebuilt, and what the loss takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.emit import Layers, Placement, emit
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, captured, seeded, two_stages


def crossing(layers: Layers) -> list[list[str]]:
    return [[info(node).id for node in values] for values in layers.boundaries]


def at(graph: ModelGraph, *cuts: str) -> Placement:
    """Cut after the last node of each id given."""
    nodes = [node for node in graph.graph.nodes if info(node).kind == "compute"]
    ends = [
        max(i for i, node in enumerate(nodes) if info(node).id.startswith(cut))
        for cut in cuts
    ]
    stage_of = {n: sum(i > end for end in ends) for i, n in enumerate(nodes)}
    return Placement(stages=len(cuts) + 1, stage_of=stage_of, block_of={})


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a = self.layers[0](x)
        b = self.layers[1](a)
        c = self.layers[2](b)
        return self.layers[3](c) + a


def test_a_skip_is_relayed_through_the_stages_between():
    graph = capture(seeded(Skips()), BATCH)
    layers = emit(graph, at(graph, "layers.0", "layers.1", "layers.2"))
    assert crossing(layers) == [
        ["layers.0@0"],
        ["layers.0@0", "layers.1@0"],
        ["layers.0@0", "layers.2@0"],
    ]


def test_encoder_states_are_relayed_over_the_decoder():
    graph = captured("t5")
    layers = emit(graph, at(graph, "encoder", "decoder.block.0", "decoder.block.1"))
    states = "encoder@0"
    for values in crossing(layers):
        assert any(
            name.startswith(states) or "encoder.dropout" in name for name in values
        )


def test_constants_are_rebuilt_not_sent():
    class Positions(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(6.0, device=x.device) / 6
            return self.second(self.first(x) + positions) * positions

    graph = capture(seeded(Positions()), BATCH)
    layers = emit(graph, at(graph, "@0:2"))
    assert crossing(layers) == [["@0:2"]]
    for layer in layers.layers:
        assert "arange" in layer.body.graph.python_code("self").src


def test_rotary_tables_of_llama_never_cross():
    graph = captured("llama")
    layers = emit(graph, two_stages(graph, "model.layers.1@0"))
    ((*names,),) = crossing(layers)
    assert not any("rotary" in name for name in names)


def test_a_free_size_crosses_as_a_number_and_arithmetic_is_rebuilt():
    graph = capture(seeded(toys.Sizes()), torch.randn(2, 8, 6))
    layers = emit(graph, two_stages(graph, "@0:3"))
    (values,) = layers.boundaries
    kinds = {info(node).id: info(node).kind for node in values}
    assert kinds["size:0"] == kinds["size:1"] == "size"
    assert not any("mul" in name for name in kinds)
    spec = layers.layers[0].send
    assert spec is not None
    assert [value.kind for value in spec.values if value.name.startswith("size")] == [
        "int",
        "int",
    ]


def test_a_value_used_twice_crosses_once():
    graph = capture(seeded(toys.TwiceTheSame()), BATCH)
    layers = emit(graph, two_stages(graph, "first"))
    assert crossing(layers) == [["first@0"]]
    assert layers.leaves == (0, 0)
    (output, again) = layers.rebuild([BATCH])
    assert output is again is BATCH


def test_labels_go_to_the_loss_part_alone():
    graph = captured("gpt2-labels")
    layers = emit(graph, at(graph, "transformer.h.0@0", "transformer.h.2@0"))
    names = [spec.name for spec in graph.inputs]
    assert [names[i] for i in layers.first] == ["input_ids"]
    assert [names[i] for i in layers.late] == ["labels"]
    assert not any("input:labels" in values for values in crossing(layers))


def test_labels_that_feed_the_decoder_go_to_both_ends():
    graph = captured("t5-labels")
    layers = emit(graph, two_stages(graph, "encoder"))
    names = [spec.name for spec in graph.inputs]
    assert "labels" in [names[i] for i in layers.first]
    assert [names[i] for i in layers.late] == ["labels"]


def test_an_input_the_model_wrote_to_reaches_the_loss_as_written():
    graph = capture(seeded(toys.WritesInput()), BATCH)
    layers = emit(graph, two_stages(graph, "@0:1"))
    assert layers.late == ()
    assert "input:x" in crossing(layers)[0]
    assert verify(graph, two_stages(graph, "@0:1"), input_tensors(graph, None)).ok


def test_an_input_that_is_returned_goes_to_the_loss_part():
    graph = capture(seeded(toys.Output("input")), BATCH)
    layers = emit(graph, two_stages(graph, "first"))
    assert layers.first == layers.late == (0,)
    assert crossing(layers) == [["first@0"]]
