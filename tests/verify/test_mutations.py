"""Verification must catch what a faulty emitter could do: each fault is put in here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.capture import capture
from partitioner.emit import Layers, Placement, emit
from partitioner.errors import RuntimeGuardError
from partitioner.graph import ModelGraph
from partitioner.verify import NUDGES, Verification
from partitioner.verify.compare import compare
from partitioner.verify.inputs import input_tensors
from partitioner.verify.run import run_cut, run_original
from partitioner.verify.seeding import Seeding
from tests.capture import toys
from tests.captured import BATCH, captured, seeded, two_stages
from tests.emit.test_flow import Skips, at

Mutation = Callable[[Layers], Layers]


def verified(
    graph: ModelGraph, placement: Placement, mutation: Mutation
) -> Verification:
    """Verify as ``verify()`` does, with a fault put into the layers."""
    seeding = Seeding(graph)
    layers = mutation(emit(graph, placement, seeder=seeding.seeder))
    tensors = input_tensors(graph, None)
    originals = run_original(graph, seeding, tensors)
    cuts = run_cut(graph, layers, tensors)
    nudged = [run_original(graph, seeding, tensors, nudge=n) for n in range(NUDGES)]
    modes = {
        name: compare(originals[name], cuts[name], [run[name] for run in nudged])
        for name in originals
    }
    return Verification(modes=modes, tolerance=1e-5)


def caught(graph: ModelGraph, placement: Placement, mutation: Mutation) -> Verification:
    """Return the verification of a fault; without it everything is equal."""
    assert verified(graph, placement, lambda layers: layers).ok
    found = verified(graph, placement, mutation)
    assert not found.ok
    return found


def edited(index: int, edit: Callable[[fx.Graph], None]) -> Mutation:
    """Change the graph of one layer."""

    def mutation(layers: Layers) -> Layers:
        layer = layers.layers[index]
        graph = fx.Graph()
        values: dict[fx.Node, fx.Node] = {}
        result = graph.graph_copy(layer.body.graph, values)
        graph.output(result)
        edit(graph)
        graph.lint()
        return with_body(layers, index, graph=graph)

    return mutation


def with_body(layers: Layers, index: int, **changes: Any) -> Layers:
    layer = layers.layers[index]
    new = replace(layer, body=replace(layer.body, **changes))
    return replace(
        layers, layers=(*layers.layers[:index], new, *layers.layers[index + 1 :])
    )


def named(graph: fx.Graph, part: str) -> fx.Node:
    return next(node for node in graph.nodes if part in node.name)


def through(graph: fx.Graph, node: fx.Node, *steps: tuple[Any, ...]) -> None:
    """Send a value through methods before the graph returns it."""
    output = graph.output_node()
    with graph.inserting_before(output):
        value = node
        for method, *args in steps:
            value = graph.call_method(method, (value, *args))
    output.replace_input_with(node, value)


# -- ties ------------------------------------------------------------------------------


def test_a_second_copy_of_a_tied_weight_is_caught():
    graph = captured("gpt2")

    def separate(layers: Layers) -> Layers:
        modules = dict(layers.layers[1].body.modules)
        modules["lm_head"] = copy.deepcopy(modules["lm_head"])
        return with_body(layers, 1, modules=modules)

    found = caught(graph, two_stages(graph, "transformer.h.1@0"), separate)
    assert found.max_output_error == 0
    wrong = {name for name, error in found.per_parameter.items() if error > 1e-5}
    assert wrong == {"transformer.wte.weight"}


def test_a_second_copy_of_a_parameter_at_the_root_is_caught():
    graph = capture(seeded(toys.RootParameter()), BATCH)

    def separate(layers: Layers) -> Layers:
        scale = layers.layers[1].body.parameters["scale"]
        clone = nn.Parameter(scale.detach().clone())
        return with_body(layers, 1, parameters={"scale": clone})

    found = caught(graph, two_stages(graph, "first"), separate)
    wrong = {name for name, error in found.per_parameter.items() if error > 1e-5}
    assert wrong == {"scale"}


# -- the wire --------------------------------------------------------------------------


def test_two_crossing_tensors_swapped_are_caught():
    graph = capture(seeded(Skips()), BATCH)

    def swap(body: fx.Graph) -> None:
        first, second = body.find_nodes(op="placeholder")
        second.append(first)

    found = caught(graph, at(graph, "layers.1"), edited(1, swap))
    assert found.max_output_error > 1e-2


def test_a_lost_gradient_of_a_relay_is_caught():
    graph = capture(seeded(Skips()), BATCH)

    def detach(body: fx.Graph) -> None:
        through(body, named(body, "layers_0"), ("detach",))

    found = caught(graph, at(graph, "layers.0", "layers.1"), edited(1, detach))
    assert found.max_output_error == 0
    assert found.per_parameter["layers.0.weight"] > 1e-2


@pytest.mark.parametrize("stage", [0, 1])
def test_a_wrong_cast_on_the_wire_is_caught(stage: int):
    graph = captured("gpt2")

    def cast(body: fx.Graph) -> None:
        node = body.output_node().all_input_nodes[-1]  # sizes come first
        through(body, node, ("to", torch.bfloat16), ("to", torch.float32))

    placement = at(graph, "transformer.h.0@0", "transformer.h.1@0")
    found = caught(graph, placement, edited(stage, cast))
    assert found.max_output_error > 1e-4


def test_a_gradient_counted_twice_is_caught():
    graph = capture(seeded(toys.TwiceTheSame()), BATCH)

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    def double(body: fx.Graph) -> None:
        node = named(body, "first")
        output = body.output_node()
        with body.inserting_before(output):
            value = body.call_function(twice, (node,))
        output.replace_input_with(node, value)

    def twice(x: Tensor) -> Tensor:
        return Doubles.apply(x)

    found = caught(graph, two_stages(graph, "first"), edited(0, double))
    assert found.max_output_error == 0


class Scaled(toys.Toy):
    """A branch that counts for next to nothing, as where layers are scaled by 1e-6."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) + 1e-6 * torch.tanh(self.first(x))


class Times(torch.autograd.Function):
    """Multiplies the gradient only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


@pytest.mark.parametrize("factor", [0.0, 2.0, -1.0])
def test_a_wrong_gradient_of_a_parameter_with_small_ones_is_caught(factor: float):
    graph = capture(seeded(Scaled()), BATCH)

    def times(x: Tensor) -> Tensor:
        return Times.apply(x, factor)

    def wrong(body: fx.Graph) -> None:
        node = named(body, "first")
        with body.inserting_after(node):
            value = body.call_function(times, (node,))
        node.replace_all_uses_with(value, delete_user_cb=lambda user: user != value)

    found = caught(graph, two_stages(graph, "second"), edited(1, wrong))
    assert found.max_output_error == 0
    failing = {name for name, error in found.per_parameter.items() if error > 1e-5}
    assert failing == {"first.weight", "first.bias"}


# -- draws, writes and modes -----------------------------------------------------------


def folded(*_: Any, **__: Any) -> Tensor:
    return torch.full((6,), 0.5)


def test_a_random_number_folded_to_a_constant_is_caught():
    graph = capture(seeded(toys.DrawsData()), BATCH)

    def fold(body: fx.Graph) -> None:
        named(body, "rand").target = folded

    found = caught(graph, two_stages(graph, "first"), edited(0, fold))
    assert found.max_output_error > 1e-2


def test_another_draw_is_caught():
    graph = captured("mlp")

    def more(layers: Layers) -> Layers:
        modules = dict(layers.layers[1].body.modules)
        modules["3"] = nn.Sequential(modules["3"], nn.Dropout(0.1))
        return with_body(layers, 1, modules=modules)

    found = caught(graph, two_stages(graph, "2@0"), more)
    assert found.modes["train"].max_output_error > 1e-2
    assert found.modes["eval"].worst <= 1e-5


def test_a_dropped_write_is_caught():
    graph = capture(seeded(toys.WritesColumn()), BATCH)

    def drop(body: fx.Graph) -> None:
        body.erase_node(named(body, "setitem"))

    caught(graph, two_stages(graph, "@0:1"), edited(0, drop))


def test_dropout_left_on_in_eval_mode_is_caught():
    graph = capture(seeded(toys.PythonDropout()), BATCH)

    def always(body: fx.Graph) -> None:
        node = named(body, "by_mode")
        node.args = (node.args[0], node.args[1], node.args[1])

    found = caught(graph, two_stages(graph, "first"), edited(1, always))
    assert found.modes["train"].worst <= 1e-5
    assert found.modes["eval"].max_output_error > 1e-2


def test_a_module_that_stays_in_train_mode_is_caught():
    class Stubborn(nn.Dropout):
        def train(self, mode: bool = True) -> Stubborn:
            return super().train(True)

    graph = captured("mlp")

    def stubborn(layers: Layers) -> Layers:
        return with_body(
            layers, 0, modules={**layers.layers[0].body.modules, "2": Stubborn(0.1)}
        )

    found = caught(graph, two_stages(graph, "2@0"), stubborn)
    assert found.modes["train"].worst <= 1e-5
    assert found.modes["eval"].max_output_error > 1e-2


def test_a_buffer_updated_twice_is_caught():
    graph = capture(seeded(toys.SharedNorm()), BATCH)

    def again(body: fx.Graph) -> None:
        norm = named(body, "norm")
        with body.inserting_before(norm):
            body.node_copy(norm)

    found = caught(graph, two_stages(graph, "norm"), edited(0, again))
    assert found.modes["train"].max_output_error == 0
    assert found.modes["train"].max_buffer_error > 1e-2
    assert found.modes["eval"].max_output_error > 1e-2


class Student(toys.Toy):
    """A teacher inside the second stage."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            target = torch.tanh(h)
        return self.second(h) - target * 2


def lose_region(body: fx.Graph) -> None:
    named(body, "tanh").target = torch.tanh


def test_a_lost_no_grad_is_caught():
    graph = capture(seeded(Student()), BATCH)
    found = caught(graph, two_stages(graph, "first"), edited(1, lose_region))
    assert found.max_output_error == 0
    assert found.per_parameter["first.weight"] > 1e-2


def test_a_gradient_where_none_may_cross_is_refused_by_the_wire():
    graph = capture(seeded(Student()), BATCH)
    with pytest.raises(RuntimeGuardError, match="sends it without a gradient"):
        verified(graph, two_stages(graph, "@0:0"), edited(0, lose_region))


def test_a_lost_reversal_is_caught():
    graph = capture(seeded(toys.Reverses()), BATCH)

    def straight(body: fx.Graph) -> None:
        node = named(body, "reverse")
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]

    found = caught(graph, two_stages(graph, "first"), edited(1, straight))
    assert found.max_output_error == 0


def test_a_missing_output_is_caught():
    graph = capture(seeded(toys.Output("tuple")), BATCH)

    def fewer(layers: Layers) -> Layers:
        return replace(
            layers, output=emit(graph, two_stages(graph, "first")).output.items[0][1]
        )

    found = caught(graph, two_stages(graph, "first"), fewer)
    assert found.max_output_error == float("inf")
