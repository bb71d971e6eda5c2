"""The generated code of a segment: names, regions, weights and frozen modules."""

from __future__ import annotations

import torch
from torch import nn

from partitioner.capture import capture
from partitioner.emit import emit
from partitioner.runtime.segment import Segment
from tests.capture import toys
from tests.captured import BATCH, captured, seeded, two_stages


def test_original_names_are_kept():
    graph = captured("gpt2")
    layers = emit(graph, two_stages(graph, "transformer.h.1.attn@0:2"))
    names = set(graph.model.state_dict())
    for layer in layers.layers:
        keys = Segment(layer.body, is_first=layer.is_first).state_dict()
        assert keys
        assert set(keys) <= names


def test_all_weights_are_held_by_some_segment():
    graph = captured("t5")
    layers = emit(graph, two_stages(graph, "decoder.block.0.layer.0"))
    held = {
        id(parameter)
        for layer in layers.layers
        for parameter in Segment(layer.body, is_first=layer.is_first).parameters()
    }
    assert held == {id(parameter) for parameter in graph.model.parameters()}


def test_regions_are_entered_again():
    graph = capture(seeded(toys.Teacher()), BATCH)
    first, second = emit(graph, two_stages(graph, "first")).layers
    code = first.body.graph.python_code("self").src
    assert "first_in_region" in code  # the teacher's call
    assert "tanh_in_region" in code
    assert "self.first(x)" in code  # the student's
    assert "in_region" not in second.body.graph.python_code("self").src


def test_unregistered_tensors_become_buffers_that_are_not_saved():
    graph = capture(seeded(toys.Unregistered()), BATCH)
    layers = emit(graph, two_stages(graph, "first"))
    for layer in layers.layers:
        segment = Segment(layer.body, receive=layer.receive, is_first=layer.is_first)
        assert all("_constants" not in key for key in segment.state_dict())
    held = [name for layer in layers.layers for name in layer.body.buffers]
    assert held == ["_constants.0", "_constants.1"]


def test_frozen_modules_are_listed_inside_whole_ones():
    model = toys.Frozen().train()
    model.inner.eval()
    graph = capture(seeded(model), BATCH)
    first, second = emit(graph, two_stages(graph, "inner")).layers
    assert first.body.frozen == {"inner", "inner.0", "inner.1"}
    assert second.body.frozen == frozenset()
    segment = Segment(first.body, send=first.send, is_first=True)
    segment.train(True)
    assert not model.inner.training
    segment.train(False)


def test_a_model_given_in_eval_mode_has_nothing_frozen():
    graph = capture(seeded(toys.Frozen()).eval(), BATCH)
    assert all(
        not layer.body.frozen
        for layer in emit(graph, two_stages(graph, "inner")).layers
    )


def test_device_and_mode_are_the_segments_own():
    graph = capture(seeded(toys.PythonDropout()), BATCH)
    first, second = emit(graph, two_stages(graph, "first")).layers
    assert "self.training" in second.body.graph.python_code("self").src
    assert "self.training" not in first.body.graph.python_code("self").src


def test_a_segment_runs_on_its_own_weights():
    graph = captured("mlp")
    first, _ = emit(graph, two_stages(graph, "0@0")).layers
    segment = Segment(first.body, is_first=True)
    token, value = segment(torch.ones(2, 8))
    linear = graph.model.get_submodule("0")
    assert isinstance(linear, nn.Linear)
    assert torch.equal(value, linear(torch.ones(2, 8)))
    assert token.shape == ()
