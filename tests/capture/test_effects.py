"""In-place writes: which nodes stay together, and that cuts keep their meaning."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partitioner.capture import capture
from partitioner.emit import Placement, emit
from partitioner.errors import DataDependentError, EmitError
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded, two_stages

WRITING: list[type[nn.Module]] = [
    toys.WritesColumn,
    toys.WritesView,
    toys.WritesInput,
    toys.ReturnsWrittenInput,
    toys.FillsMask,
    toys.FillsMaskFromData,
    toys.Counts,
    toys.SharedNorm,
    toys.FunctionalNorm,
    toys.WritesDropout,
    toys.FillsRows,
]


@pytest.mark.parametrize("toy", WRITING, ids=lambda toy: toy.__name__)
def test_cuts_around_writes_change_nothing(toy: type[nn.Module]):
    graph = capture(seeded(toy()), BATCH)
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def group_of(graph: ModelGraph, part: str) -> set[str]:
    """Ids of the group that holds a node whose operator's name contains ``part``."""
    for group in graph.groups:
        if any(part in str(node) for node in group):
            return {info(node).id for node in group}
    return set()


def test_a_write_stays_with_its_memory():
    graph = capture(seeded(toys.WritesColumn()), BATCH)
    assert group_of(graph, "setitem") == {"@0:0", "@0:1"}


def test_memory_needs_gradients_as_its_last_write_leaves_it():
    graph = capture(seeded(toys.FillsRows()), BATCH)
    memory = next(node for node in graph.graph.nodes if node.target == "new_empty")
    (meta,) = info(memory).outputs
    assert meta.requires_grad
    readers = [node for node in graph.graph.nodes if node.target == "flatten"]
    stage_of = {n: 0 for n in graph.graph.nodes if info(n).kind == "compute"}
    for node in list(stage_of)[list(stage_of).index(readers[0]) :]:
        stage_of[node] = 1
    cut = Placement(stages=2, stage_of=stage_of, block_of={})
    assert readers[0].all_input_nodes == [memory]
    assert verify(graph, cut, [BATCH]).ok


def test_a_reader_before_a_write_may_not_run_after_it():
    graph = capture(seeded(toys.WritesView()), BATCH)
    node = {info(node).id: node for node in graph.graph.nodes}
    reads = node["@0:2"]  # y * 2, before half.mul_(2)
    writes = node["@0:3"]
    assert writes.target == "mul_"
    assert (reads, writes) in graph.order_edges


def test_a_cut_between_a_write_and_its_memory_is_refused():
    graph = capture(seeded(toys.WritesColumn()), BATCH)
    stage_of = {n: 0 for n in graph.graph.nodes if info(n).kind == "compute"}
    for node in list(stage_of)[2:]:
        stage_of[node] = 1
    names = [info(node).id for node, stage in stage_of.items() if stage == 0]
    assert names == ["first@0", "@0:0"]
    with pytest.raises(EmitError, match=r"must stay together: @0:0, @0:1"):
        emit(graph, Placement(stages=2, stage_of=stage_of, block_of={}))


@pytest.mark.parametrize(
    ("toy", "buffers"),
    [
        (toys.Counts, {"steps"}),
        (toys.SharedNorm, {"norm.running_mean", "norm.running_var"}),
        (toys.FunctionalNorm, {"mean", "var"}),
    ],
)
def test_written_buffers_are_known(toy: type[nn.Module], buffers: set[str]):
    assert buffers <= capture(seeded(toy()), BATCH).written_buffers


@pytest.mark.parametrize("toy", [toys.SharedNorm, toys.FunctionalNorm])
def test_all_users_of_a_written_buffer_share_a_stage(toy: type[nn.Module]):
    """Both calls update the same statistics: one stage must hold them."""
    graph = capture(seeded(toy()), BATCH)
    stage_of = {n: 0 for n in graph.graph.nodes if info(n).kind == "compute"}
    last = [node for node in stage_of if "norm" in str(node)][-1]
    started = False
    for node in stage_of:
        started |= node is last
        stage_of[node] = int(started)
    with pytest.raises(EmitError, match="a cut separates"):
        emit(graph, Placement(stages=2, stage_of=stage_of, block_of={}))


def test_a_leaf_that_replaces_its_buffer_counts_once():
    graph = capture(seeded(toys.Inside(toys.Replaces())), BATCH)
    assert "inner.steps" in graph.written_buffers
    for verification in cut_everywhere(graph):
        assert verification.ok, verification
    assert graph.model.get_submodule("inner").steps == 0


def test_the_root_may_not_replace_its_buffer():
    with pytest.raises(
        DataDependentError, match="replaces its buffer 'steps'"
    ) as caught:
        capture(toys.Replaces(), BATCH)
    assert "copy_" in caught.value.hint
    assert caught.value.source.startswith("tests/capture/toys.py:")


def test_parts_of_one_result_stay_together():
    class Halves(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.first(x).chunk(2, -1)
            return self.second(torch.cat([right, left], -1))

    graph = capture(seeded(Halves()), BATCH)
    assert len(group_of(graph, "chunk")) == 3
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_a_mask_filled_in_place_is_rebuilt_with_its_writes():
    class Mask(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(6, device=x.device)
            mask[2:] = 1.0
            return self.second(self.first(x) * mask) * mask

    graph = capture(seeded(Mask()), BATCH)
    kinds = {str(n): info(n).kind for n in graph.graph.nodes if "setitem" in str(n)}
    assert set(kinds.values()) == {"constant"}
    layers = emit(graph, two_stages(graph, "@0:2"))
    for layer in layers.layers:  # zero, then fill: on both stages
        assert sum("setitem" in node.name for node in layer.body.graph.nodes) == 1
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_no_order_is_asked_of_a_model_that_writes_nothing():
    graph = capture(seeded(toys.TwiceTheSame()), BATCH)
    assert graph.order_edges == ()
    assert graph.groups == ()


def test_a_write_to_what_dropout_hands_on_in_eval_mode_is_seen():
    graph = capture(seeded(toys.WritesDropout()), BATCH)
    node = {info(node).id: node for node in graph.graph.nodes}
    assert any({node["first@0"], node["drop@0"]} <= group for group in graph.groups)
