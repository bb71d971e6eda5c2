from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve
from partitioner.cost.memory import Engine
from partitioner.cost.roofline import hop_s
from partitioner.cost.weights import read_weights
from partitioner.errors import OptionError, TooManyStagesError
from partitioner.graph import info
from tests.cost import models
from tests.cost.handmade import GraphBuilder, meta

CPU = resolve("cpu")


def state(graph, **options):
    costed = price(graph, profile=CPU)
    return costed, *problem(costed, **{"stages": 2, "micro_batches": 4, **options})


@pytest.fixture(scope="module")
def t5():
    model, inputs = models.build("t5")
    return model, capture(model, example_inputs=inputs, dtype=None)


def test_units_add_up_to_the_whole_model(t5):
    _, graph = t5
    costed, stated, _ = state(graph)

    total = costed.total
    assert sum(u.forward_s for u in stated.units) == pytest.approx(total.forward_s)
    assert sum(u.backward_s for u in stated.units) == pytest.approx(total.backward_s)
    assert sum(u.saved_bytes for u in stated.units) == total.saved_bytes


def test_every_parameter_is_held_once_by_a_unit_or_a_tie(t5):
    model, graph = t5
    _, stated, _ = state(graph, optimizer="adamw")

    held = sum(unit.static_bytes for unit in stated.units)
    held += sum(tie.static_bytes for tie in stated.ties)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert held == 16 * parameters + buffers


def test_an_embedding_shared_by_encoder_decoder_and_head_is_a_tie_of_three(t5):
    model, graph = t5
    _, stated, found = state(graph)

    shared = 16 * model.shared.weight.numel()
    (tie,) = [tie for tie in stated.ties if tie.static_bytes == shared]
    # The first copy is one stage's own.
    trains = [stated.units[unit].trainable for unit in tie.units]
    assert trains == [True, False, False]
    readers = [info(found.nodes[unit][0]).id.split("@")[0] for unit in tie.units]
    assert len(readers) == 3
    assert "lm_head" in readers


def test_encoder_states_are_one_value_read_by_every_decoder_layer(t5):
    _, graph = t5
    costed, stated, found = state(graph)

    def layers_that_read(value):
        paths = [
            info(node).module.split(".")
            for unit in value.consumers
            for node in found.nodes[unit]
        ]
        # A leaf module's own path is its target.
        paths += [
            str(node.target).split(".")
            for unit in value.consumers
            for node in found.nodes[unit]
            if node.op == "call_module"
        ]
        return {p[2] for p in paths if p[:2] == ["decoder", "block"] and len(p) > 2}

    skips = [value for value in stated.values if len(layers_that_read(value)) == 2]
    widths = {value.wire_bytes for value in skips}
    states = 4 * 2 * 16 * 32
    assert states in widths
    assert any(
        value.hop_s == pytest.approx(hop_s(costed.profile, states, [states]))
        for value in skips
    )


def test_values_go_forward_and_never_to_their_own_producer(t5):
    _, graph = t5
    _, stated, _ = state(graph)

    for value in stated.values:
        assert value.consumers
        assert all(reader > value.producer for reader in value.consumers)


def test_inputs_are_on_the_first_stage_and_loss_and_outputs_on_the_last(t5):
    _, graph = t5
    _, stated, found = state(graph)

    for node, unit in found.unit_of.items():
        kinds = {info(other).kind for other in found.nodes[unit]}
        pin = stated.units[unit].pinned_stage
        if info(node).kind == "input":
            assert pin == 0
        elif kinds & {"late", "output"}:
            assert pin == -1
        else:
            assert pin is None


def test_labels_read_in_the_loss_do_not_travel_but_other_inputs_do():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4, requires_grad=False))
    labels = builder.input("labels", meta(2, dtype=torch.int64))
    y = builder.call(torch.exp, x, out=meta(2, 4))
    loss = builder.call(F.cross_entropy, y, labels, out=meta(), kind="late")
    builder.output(loss)

    _, stated, found = state(builder.build())

    assert found.unit_of[labels] not in {value.producer for value in stated.values}
    (value,) = [v for v in stated.values if v.producer == found.unit_of[x]]
    assert value.consumers == (found.unit_of[y],)
    assert value.wire_bytes == 32


def test_only_what_needs_a_gradient_pays_for_the_way_back():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    learns = builder.call(torch.exp, x, out=meta(2, 4))
    mask = builder.call(torch.sign, x, out=meta(2, 4, requires_grad=False))
    builder.call(torch.mul, learns, mask, out=meta(2, 4))

    _, stated, found = state(builder.build())

    seconds = {value.producer: value.hop_s for value in stated.values}
    assert seconds[found.unit_of[mask]] == hop_s(CPU, 32, [])
    assert seconds[found.unit_of[learns]] == hop_s(CPU, 32, [32])


def test_nothing_travels_through_sizes_and_constants():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    size = builder.call("size", x, 0, kind="size")
    positions = builder.call(
        torch.arange, size, out=meta(2, dtype=torch.int64), kind="constant"
    )
    builder.call(torch.add, positions, 1.0, out=meta(2))

    _, stated, _ = state(builder.build())

    assert stated.values == ()


def test_a_buffer_is_held_without_gradient_and_shared_ones_are_ties():
    fc = nn.Linear(4, 4).requires_grad_(False)
    fc.bias.requires_grad_(True)
    model = nn.ModuleDict({"fc": fc})
    model.register_buffer("table", torch.zeros(10))
    builder = GraphBuilder(model)
    x = builder.input("x", meta(2, 4))
    table = builder.weight("table")
    y = builder.call("fc", x, out=meta(2, 4))
    for _ in range(2):
        y = builder.call(torch.add, y, table, out=meta(2, 4))

    _, stated, found = state(builder.build(), optimizer="sgd")

    (tie,) = stated.ties
    assert tie.static_bytes == 40
    assert len(tie.units) == 2
    layer = stated.units[found.unit_of[y] - 2]
    assert (layer.trainable, layer.frozen) == (True, True)
    # A frozen weight alone, and a bias with its gradient.
    assert layer.static_bytes == 4 * 16 + 2 * 4 * 4
    assert not stated.units[-1].weighted  # of buffers alone


def test_names_of_one_parameter_count_as_one():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.ModuleDict({"a": first, "b": second})
    builder = GraphBuilder(model)
    x = builder.input("x", meta(2, 4))
    y = builder.call("a", x, out=meta(2, 4))
    builder.call("b", y, out=meta(2, 4))

    graph = builder.build(aliases={"b.weight": "a.weight"})
    _, stated, _ = state(graph)

    (tie,) = stated.ties
    assert tie.units == (1, 2)
    shared = {weight for found in read_weights(graph).values() for weight in found}
    engine = Engine(dtype=torch.float32, optimizer="adamw")
    assert tie.static_bytes == engine.held(w for w in shared if w.numel == 16)
    assert tie.step_bytes == engine.step(w for w in shared if w.numel == 16)


def test_order_edges_become_pairs_of_units():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    one = builder.call(torch.exp, x, out=meta(2, 4))
    two = builder.call(torch.sin, x, out=meta(2, 4))

    _, stated, found = state(builder.build(order_edges=((one, two),)))

    assert stated.order_edges == ((found.unit_of[one], found.unit_of[two]),)


def test_options_reach_the_problem(t5):
    _, graph = t5
    _, stated, _ = state(
        graph,
        stages=3,
        micro_batches=5,
        memory_limit_bytes=123,
        checkpointing="all",
    )

    assert (stated.stages, stated.micro_batches) == (3, 5)
    assert stated.in_flight == (3, 2, 1)
    assert stated.memory_limit_bytes == 123
    assert stated.checkpointing == "all"


def test_an_optimizer_that_is_not_known_is_refused(t5):
    _, graph = t5
    with pytest.raises(OptionError, match="adagrad"):
        state(graph, optimizer="adagrad")


def test_an_input_bound_to_the_output_allows_one_stage_only():
    builder = GraphBuilder()
    x = builder.input("x", meta(2, 4))
    y = builder.call("add_", x, 1.0, out=meta(2, 4))
    out = builder.output(y)
    graph = builder.build(groups=(frozenset({x, out}),))

    with pytest.raises(TooManyStagesError) as caught:
        state(graph)

    assert caught.value.largest == 1
    assert state(graph, stages=1)[1].units[0].pinned_stage == 0
