"""Where a node comes from: ids, draw names, and lines of the user's code."""

from __future__ import annotations

from torch import nn

from partitioner.capture import capture
from partitioner.capture.frames import Frame, forward_source, user_source
from partitioner.graph import info
from tests.capture import toys
from tests.captured import BATCH, captured


def test_operations_and_draws_are_numbered_apart():
    frame = Frame("a.b", 2, None)
    assert [frame.next_id() for _ in range(2)] == ["a.b@2:0", "a.b@2:1"]
    assert frame.draw_key("rand") == "a.b@2:rand#0"
    assert frame.draw_key("add") == "a.b@2:add#0"
    assert frame.draw_key("rand") == "a.b@2:rand#1"


def test_the_line_is_the_users():
    assert user_source().startswith("tests/capture/test_frames.py:")


def test_a_forward_has_a_line():
    source = forward_source(toys.Counts())
    assert source.startswith("tests/capture/toys.py:")
    assert forward_source(nn.Linear(1, 1)).endswith(tuple("0123456789"))


def test_every_operation_of_a_toy_points_into_its_forward():
    graph = capture(toys.WritesView(), BATCH)
    lines = {info(n).source for n in graph.graph.nodes if info(n).kind == "compute"}
    assert all(line.startswith("tests/capture/toys.py:") for line in lines)
    first = int(forward_source(graph.model).rpartition(":")[2])
    assert {int(line.rpartition(":")[2]) - first for line in lines} <= set(range(1, 8))


def test_library_models_point_into_the_library():
    sources = {info(n).source for n in captured("gpt2").graph.nodes} - {""}
    assert all("transformers/" in source for source in sources)
    assert not any(source.startswith("/") for source in sources)


def test_the_innermost_module_is_named():
    graph = captured("gpt2")
    modules = {info(n).module for n in graph.graph.nodes if info(n).kind == "compute"}
    assert "transformer.h.3.attn.c_proj" in modules
    assert "transformer.h.3.attn" in modules
