"""Boundaries, ties and stage bounds of the emitted layers."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from partitioner.capture import capture
from partitioner.emit import Layers, Placement, emit
from partitioner.graph import ModelGraph, info
from partitioner.runtime.pipeline_module import ParameterTie
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, captured, seeded, two_stages
from tests.placements import random_placement


def test_only_the_ends_of_stages_are_packed():
    graph = captured("gpt2")
    placement = random_placement(graph, 3, random.Random(1), checkpoint=True)
    layers = emit(graph, placement)
    assert layers.parts[0] == 0
    assert layers.parts[-1] == len(layers.layers)
    for index, layer in enumerate(layers.layers):
        starts, ends = index in layers.parts[1:], index + 1 in layers.parts[:-1]
        assert (layer.receive is not None) == starts
        assert (layer.send is not None) == ends
        assert layer.is_first == (index == 0)
        assert layer.stage == sum(index >= part for part in layers.parts[1:-1])


def test_both_sides_of_a_boundary_agree():
    graph = captured("t5")
    layers = emit(graph, random_placement(graph, 4, random.Random(2)))
    for part in layers.parts[1:-1]:
        assert layers.layers[part - 1].send == layers.layers[part].receive


def test_recomputed_blocks_are_segments_of_their_own():
    graph = captured("gpt2")
    placement = random_placement(graph, 2, random.Random(3), checkpoint=True)
    layers = emit(graph, placement)
    marked = [layer.body.checkpointed for layer in layers.layers]
    assert True in marked
    assert len(set(placement.block_of.values())) <= sum(marked)


class Doubles(torch.nn.Module):
    """Nothing that it reads is kept for its backward."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0


class WritesAfterwards(toys.Toy):
    def __init__(self) -> None:
        super().__init__()
        self.block = Doubles()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made = self.block(h.t())
        h.add_(1.0)
        return self.second(h + made.t())


def test_what_is_written_after_a_recomputed_block_is_copied_for_it():
    graph = capture(seeded(WritesAfterwards()), BATCH)
    inside = {node for node in graph.graph.nodes if info(node).module == "block"}
    plain = two_stages(graph, "@0:1")
    placement = Placement(
        stages=2, stage_of=plain.stage_of, block_of=dict.fromkeys(inside, "block@0")
    )
    layers = emit(graph, placement)
    copied = {layer.body.name: layer.body.written_later for layer in layers.layers}
    (block,) = [layer.body for layer in layers.layers if layer.body.checkpointed]
    names = [node.name for node in block.graph.find_nodes(op="placeholder")]
    assert {names[i] for i in block.written_later} == {"first", "t"}
    assert not any(found for name, found in copied.items() if name != block.name)
    assert verify(graph, placement, input_tensors(graph, None)).ok


@pytest.mark.parametrize(
    ("name", "cut", "tied"),
    [
        ("gpt2", "transformer.h.1@0", ["transformer.wte.weight"]),
        ("t5", "encoder", ["shared.weight"]),
        ("llama", "model.layers.1@0", []),
    ],
)
def test_ties_are_parameters_that_several_stages_hold(
    name: str, cut: str, tied: list[str]
):
    layers = emit(captured(name), two_stages(captured(name), cut))
    assert [tie.name for tie in layers.ties] == tied
    assert all(tie.stages == (0, 1) for tie in layers.ties)


def test_a_tie_knows_its_other_names():
    layers = emit(captured("gpt2"), two_stages(captured("gpt2"), "transformer.h.1@0"))
    assert layers.ties == (
        ParameterTie(
            name="transformer.wte.weight", stages=(0, 1), aliases=("lm_head.weight",)
        ),
    )


def test_a_parameter_used_directly_at_the_root_is_tied():
    graph = capture(seeded(toys.RootParameter()), BATCH)
    layers = emit(graph, two_stages(graph, "first"))
    assert [(tie.name, tie.stages) for tie in layers.ties] == [("scale", (0, 1))]


def values_of(layers: Layers) -> dict[str, object]:
    spec = layers.layers[layers.parts[1]].receive
    assert spec is not None
    return {value.name: value for value in spec.values}


def test_values_without_gradient_are_marked_so():
    class Masks(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            positive = x > 0
            fixed = torch.tanh(h.detach())
            return self.second(h * positive) + fixed

    graph = capture(seeded(Masks()), BATCH)
    found = values_of(emit(graph, two_stages(graph, "@0:2")))
    flags = {name: value.differentiable for name, value in found.items()}  # type: ignore[attr-defined]
    assert flags["first"] is True
    assert flags["tanh"] is False
    assert flags["gt"] is False


def test_open_dimensions_follow_the_inputs():
    found = values_of(
        emit(captured("gpt2"), two_stages(captured("gpt2"), "transformer.h.1@0"))
    )
    (value,) = [v for v in found.values() if v.kind == "tensor"]  # type: ignore[attr-defined]
    assert value.shape == (None, None, 32)  # type: ignore[attr-defined]


def strides_at_b(graph: ModelGraph, placement: Placement) -> set[tuple[int, ...]]:
    """Strides of what ``b`` gets in the original and the cut, in train and eval."""
    received = []

    def keep(module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        received.append(args[0].stride())

    graph.model.get_submodule("b").register_forward_pre_hook(keep)
    assert verify(graph, placement, input_tensors(graph, None)).ok
    return set(received)


@pytest.mark.parametrize("cut", ["a@0", "drop@0", "@0:1"])
def test_memory_order_is_kept_over_a_boundary(cut: str):
    graph = capture(seeded(toys.ChannelsLast()), torch.randn(2, 3, 5, 7))
    assert len(strides_at_b(graph, two_stages(graph, cut))) == 1


def test_memory_order_is_kept_of_parts_with_gaps_between():
    class Halves(toys.ChannelsLast):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x.contiguous(memory_format=torch.channels_last))
            left, right = h.chunk(2, 1)
            return self.b(torch.cat([left.tanh(), right.exp()], 1))

    graph = capture(seeded(Halves()), torch.randn(2, 3, 5, 7))
    assert len(strides_at_b(graph, two_stages(graph, "@0:1"))) == 1


def test_memory_order_is_that_of_the_kernel_and_not_of_the_fake():
    class Statistics(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.BatchNorm1d(6), torch.nn.Linear(5, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x.transpose(1, 2)))

    graph = capture(seeded(Statistics()), torch.randn(3, 5, 6))
    assert len(strides_at_b(graph, two_stages(graph, "a@0"))) == 1
