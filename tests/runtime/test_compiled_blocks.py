"""A segment compiled block by block computes what it computes whole."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import torch
from torch import Tensor, fx, nn

from partitioner.runtime.compiled_blocks import BLOCK, compiled_blocks
from partitioner.runtime.segment import SegmentBody, SegmentProgram

WIDTH = 4


def body(graph: fx.Graph, **modules: nn.Module) -> SegmentBody:
    return SegmentBody(
        name="blocks",
        graph=graph,
        modules=modules,
        parameters={"scale": nn.Parameter(torch.randn(WIDTH))},
    )


def put(node: fx.Node, block: int) -> fx.Node:
    node.meta[BLOCK] = block
    return node


def three_blocks() -> fx.Graph:
    """Reads a weight in two blocks, a size in the last, and hands an input on."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    scale = graph.create_node("get_attr", "scale")
    rows = graph.call_function(operator.getitem, (graph.call_method("size", (x,)), 0))
    a = put(graph.call_module("first", (x,)), 0)
    a = put(graph.call_function(torch.mul, (a, scale)), 0)
    b = put(graph.call_module("second", (a,)), 1)
    c = put(graph.call_function(torch.mul, (b, scale)), 2)
    d = put(graph.call_function(torch.div, (c, rows)), 2)
    graph.output((d, y, a))
    return graph


def program() -> SegmentProgram:
    torch.manual_seed(0)
    modules = {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)}
    return SegmentProgram(body(three_blocks(), **modules))


def outcome(made: SegmentProgram) -> list[Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(3, WIDTH, requires_grad=True), torch.randn(2)
    results = made(x, y)
    results[0].square().sum().backward()
    gradients = [weight.grad for weight in made.parameters()]
    return [*results, x.grad, *gradients]


def test_blocks_are_compiled_apart_and_compute_the_same():
    plain, apart = program(), program()
    graphs: list[fx.GraphModule] = []

    def backend(module: fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    apart.compile(backend=backend)
    assert apart.is_compiled
    for found, wanted in zip(outcome(apart), outcome(plain), strict=True):
        assert torch.equal(found, wanted)
    assert len(graphs) == 3


def test_without_blocks_all_is_one():
    graph = three_blocks()
    for node in graph.nodes:
        node.meta.pop(BLOCK, None)
    made: list[Any] = []
    compiled_blocks(graph, "one", made.append)
    assert len(made) == 1


def test_a_segment_that_only_hands_values_on_has_nothing_to_compile():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((y, x))
    made: list[Any] = []
    run = compiled_blocks(graph, "relay", made.append)
    assert run(None, 1, 2) == (2, 1)
    assert not made


def test_a_weight_may_be_a_result():
    graph = fx.Graph()
    x = graph.placeholder("x")
    scale = graph.create_node("get_attr", "scale")
    doubled = put(graph.call_function(torch.mul, (x, scale)), 4)
    graph.output((doubled, scale))
    made = SegmentProgram(body(graph))
    run = compiled_blocks(graph, "weight", lambda function: function)
    found = run(made._scope, torch.ones(WIDTH))
    assert torch.equal(found[0], found[1])
    assert found[1] is dict(made.named_parameters())["scale"]


def test_a_value_is_let_go_after_its_last_reader():
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = put(graph.call_function(torch.neg, (x,)), 0)
    b = put(graph.call_function(torch.neg, (a,)), 1)
    c = put(graph.call_function(torch.neg, (b,)), 2)
    graph.output((c,))
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watching(function: Any) -> Any:
        def run(scope: Any, *values: Any) -> Any:
            alive.append(sum(each() is not None for each in made))
            results = function(scope, *values)
            made.extend(map(weakref.ref, results))
            return results

        return run

    compiled_blocks(graph, "chain", watching)(None, torch.ones(1))
    assert alive == [0, 1, 1]


def test_what_only_the_result_reads_comes_last():
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = put(graph.call_function(torch.neg, (x,)), 3)
    rows = graph.call_method("size", (made, 0))
    graph.output((made, rows))
    run = compiled_blocks(graph, "size", lambda function: function)
    assert run(None, torch.ones(5))[1] == 5
