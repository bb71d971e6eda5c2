"""Segments keep the user's modules, names and meaning."""

from __future__ import annotations

import random
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.errors import EmitError
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment, SegmentBody, SegmentProgram
from partitioner.runtime.wire import WireSpec
from partitioner.runtime.wire_value import WireValue


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def chain_body(modules: dict[str, nn.Module], **fields: Any) -> SegmentBody:
    """Build a body that calls modules one after the other on a single value."""
    graph = fx.Graph()
    value = graph.placeholder("value")
    for path in modules:
        value = graph.call_module(path, (value,))
    graph.output((value,))
    return SegmentBody(name="chain", graph=graph, modules=modules, **fields)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3)])
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)


def model_body(model: Model) -> SegmentBody:
    graph = fx.Graph()
    value = graph.placeholder("value")
    for path in ("blocks.0", "blocks.1"):
        value = graph.call_module(path, (value,))
    value = graph.call_function(torch.mul, (value, graph.get_attr("scale")))
    value = graph.call_function(torch.add, (value, graph.get_attr("shift")))
    value = graph.call_function(torch.add, (value, graph.get_attr("hidden")))
    graph.output((value,))
    return SegmentBody(
        name="model",
        graph=graph,
        modules={path: model.get_submodule(path) for path in ("blocks.1", "blocks.0")},
        parameters={"scale": model.scale},
        buffers={
            "shift": (model.get_buffer("shift"), True),
            "hidden": (model.get_buffer("hidden"), False),
        },
    )


def test_names_and_objects_are_the_original_ones():
    model = Model()
    segment = Segment(model_body(model), is_first=True)
    assert set(segment.state_dict()) == set(model.state_dict())
    ours, theirs = dict(segment.named_parameters()), dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in ours)
    assert segment.get_submodule("blocks.1") is model.blocks[1]


def test_first_segment_detaches_its_inputs_and_starts_a_token():
    segment = Segment(chain_body({"a": nn.Identity()}), is_first=True)
    token, value = segment(torch.ones(2, requires_grad=True))
    assert token.requires_grad
    assert not value.requires_grad
    token, value = segment((torch.ones(2),))
    assert torch.equal(value, torch.ones(2))


@pytest.mark.parametrize("order", [("a", "a.0.weight"), ("a.0.weight", "a")])
def test_a_path_inside_another_is_registered_once(order):
    inner = nn.Sequential(nn.Linear(2, 2))
    graph = fx.Graph()
    value = graph.placeholder("value")
    value = graph.call_module("a", (value,))
    graph.output((value, graph.get_attr("a.0.weight")))
    entries: dict[str, Any] = {"a": inner, "a.0.weight": inner[0].weight}
    body = SegmentBody(
        name="nested",
        graph=graph,
        modules={path: entries[path] for path in order if path == "a"},
        parameters={"a.0.weight": entries["a.0.weight"]},
    )
    segment = SegmentProgram(body)
    assert sorted(segment.state_dict()) == ["a.0.bias", "a.0.weight"]
    _, weight = segment(torch.ones(1, 2))
    assert weight is inner[0].weight


@pytest.mark.parametrize("order", [("a", "a.0"), ("a.0", "a")])
def test_a_module_inside_another_is_found_there(order):
    inner = nn.Sequential(nn.Linear(2, 2))
    entries = {"a": inner, "a.0": inner[0]}
    segment = SegmentProgram(chain_body({path: entries[path] for path in order}))
    assert sorted(segment.state_dict()) == ["a.0.bias", "a.0.weight"]
    assert list(inner._modules) == ["0"]


def test_two_objects_at_one_path_are_refused():
    modules = {"a": nn.Sequential(nn.Linear(2, 2)), "a.0": nn.Linear(2, 2)}
    with pytest.raises(EmitError, match=r"'a\.0'"):
        SegmentProgram(chain_body(modules))


@pytest.mark.parametrize("name", ["code", "forward", "run", "weight", "_body"])
def test_a_users_name_may_be_one_of_ours(name):
    inner = nn.Linear(2, 2)
    segment = SegmentProgram(chain_body({f"{name}.inner": inner}))
    assert torch.equal(segment(torch.ones(1, 2))[0], inner(torch.ones(1, 2)))
    assert f"{name}.inner.weight" in segment.state_dict()


def flag_body(**fields: Any) -> SegmentBody:
    graph = fx.Graph()
    value = graph.placeholder("value")
    flag = graph.get_attr("training")
    dropped = graph.call_function(
        nn.functional.dropout, (value,), {"p": 0.5, "training": flag}
    )
    zeros = graph.call_function(torch.zeros, (2,), {"device": graph.get_attr("device")})
    graph.output((dropped, zeros))
    return SegmentBody(name="flags", graph=graph, **fields)


def test_training_and_device_are_the_segments_own():
    segment = SegmentProgram(flag_body())
    torch.manual_seed(0)
    dropped, _ = segment.train()(torch.ones(100))
    assert (dropped == 0).any()
    kept, zeros = segment.eval()(torch.ones(100))
    assert torch.equal(kept, torch.ones(100))
    assert zeros.device == torch.device("cpu")
    assert segment(torch.ones(2, device="meta"))[1].device.type == "meta"


def test_frozen_modules_stay_in_eval_mode():
    modules: dict[str, nn.Module] = {"a": nn.Dropout(), "b": nn.Dropout()}
    segment = SegmentProgram(chain_body(modules, frozen=frozenset({"b"})))
    segment.train()
    assert modules["a"].training
    assert not modules["b"].training


def test_traceback_shows_the_generated_line():
    class Failing(nn.Module):
        def forward(self, value):
            raise ValueError("broken")

    segment = SegmentProgram(chain_body({"a": Failing()}))
    with pytest.raises(ValueError, match="broken") as caught:
        segment(torch.ones(1))
    shown = "".join(traceback.format_exception(caught.value))
    assert "<segment chain" in shown
    assert "self.a(value)" in shown
    assert "self.a(value)" in segment.code


def test_caches_are_off_during_the_run_only():
    class Config:
        use_cache = True

    class Reader(nn.Module):
        def forward(self, value):
            return value + float(config.use_cache)

    config = Config()
    segment = SegmentProgram(chain_body({"a": Reader()}, configs=(config,)))
    assert segment(torch.zeros(1))[0].item() == 0.0
    assert config.use_cache


def test_two_stages_pass_values_and_gradients():
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    wire = WireSpec(
        values=(
            WireValue(
                name="hidden",
                kind="tensor",
                dtype=torch.float32,
                shape=(None, 4),
                differentiable=True,
            ),
        )
    )
    sender = Segment(chain_body({"first": first}), send=wire, is_first=True)
    receiver = Segment(chain_body({"second": second}), receive=wire)
    inputs = torch.randn(5, 3)
    carrier, rest = sender(inputs)
    leaf = carrier.detach().clone().requires_grad_()
    token, result = receiver((leaf, rest))
    (result.sum() + token * 0).backward()
    carrier.backward(gradient=leaf.grad)
    found = [gradient(first.weight), gradient(second.weight)]
    first.zero_grad()
    second.zero_grad()
    second(first(inputs)).sum().backward()
    assert torch.equal(found[0], gradient(first.weight))
    assert torch.equal(found[1], gradient(second.weight))


class Counter(nn.Module):
    """Scales by how often it ran, replaces one buffer and writes another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.replaced: Tensor
        self.written: Tensor
        self.register_buffer("replaced", torch.ones(()))
        self.register_buffer("written", torch.ones(4))

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.linear(value) * self.replaced * self.written.clone()
        self.replaced = self.replaced + 1
        self.written.add_(1)
        return result.relu() * (1 + random.random())


class InPlaceFirst(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.mul_(3).sin()


def recomputed_modules() -> dict[str, nn.Module]:
    return {
        "enter": InPlaceFirst(),
        "count": Counter(),
        "norm": nn.BatchNorm1d(4),
        "drop": nn.Dropout(0.5),
        "spectral": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        "leave": nn.Linear(4, 4),
    }


def train(kind: type[Segment]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Run three micro-batches forward, then backward; twice, in train mode."""
    torch.manual_seed(3)
    random.seed(3)
    segment = kind(chain_body(recomputed_modules()))
    for _ in range(2):
        losses = []
        for _ in range(3):
            value = torch.randn(6, 4, requires_grad=True) * 1
            token = torch.zeros((), requires_grad=True)
            losses.append(segment((token, value))[1].square().mean())
        for loss in losses:
            loss.backward()
    state = {name: value.clone() for name, value in segment.state_dict().items()}
    gradients = [gradient(parameter) for parameter in segment.parameters()]
    return state, [*gradients, torch.rand(1), torch.tensor(random.random())]


def test_recomputation_changes_nothing():
    plain_state, plain_gradients = train(Segment)
    state, gradients = train(CheckpointedSegment)
    assert state.keys() == plain_state.keys()
    for name, value in state.items():
        assert torch.equal(value, plain_state[name]), name
    for ours, theirs in zip(gradients, plain_gradients, strict=True):
        assert torch.equal(ours, theirs)


def test_checkpointed_segment_really_recomputes():
    calls: list[Tensor] = []

    class Calls(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            calls.append(value)
            return value.sin()

    segment = CheckpointedSegment(chain_body({"a": Calls(), "b": nn.Linear(2, 2)}))
    _token, value = segment((torch.zeros(()), torch.ones(1, 2)))
    value.sum().backward()
    assert len(calls) == 2


def test_checkpointed_segment_does_nothing_without_gradients():
    segment = CheckpointedSegment(chain_body(recomputed_modules()))
    plain = Segment(chain_body(recomputed_modules()))
    plain.load_state_dict(segment.state_dict())
    value = torch.randn(3, 4)
    for each in (plain, segment):
        each.eval()
    with torch.no_grad():
        random.seed(0)
        _, expected = plain((torch.zeros(()), value.clone()))
        random.seed(0)
        _, found = segment((torch.zeros(()), value.clone()))
    assert torch.equal(found, expected)
    assert not found.requires_grad


def relay_body(**fields: Any) -> SegmentBody:
    """Use one value and hand it on, and hand another on unused."""
    graph = fx.Graph()
    used, passed = graph.placeholder("used"), graph.placeholder("passed")
    # Neither operation needs ``used`` for its backward: it may be written afterwards.
    made = graph.call_function(torch.tanh, (used,))
    made = graph.call_function(torch.mul, (made, graph.get_attr("weight")))
    graph.output((made, used, passed))
    parameters = {"weight": nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))}
    return SegmentBody(name="relay", graph=graph, parameters=parameters, **fields)


def test_what_a_later_segment_writes_can_still_be_recomputed():
    body = relay_body(written_later=frozenset({0, 1}))
    results = []
    for kind in (Segment, CheckpointedSegment):
        segment = kind(body)
        found = []
        for number in range(3):  # the first run learns what the body writes
            leaf = torch.full((2, 3), number / 8, requires_grad=True)
            token = torch.zeros((), requires_grad=True)
            _, made, used, passed = segment((token, leaf * 2, leaf * 3))
            total = made + used.mul_(2) + passed.mul_(3)
            segment.zero_grad()
            (total * total).sum().backward()
            parameters = [gradient(p) for p in segment.parameters()]
            found += [total.detach(), leaf.grad, *parameters]
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_is_handed_on_is_the_same_tensor_from_the_first_run():
    # A buffer that segments before and after write in place.
    segment = CheckpointedSegment(relay_body())
    used, passed = torch.ones(2, 3), torch.zeros(())
    for _ in range(2):
        token = torch.zeros((), requires_grad=True)
        _, _, used_after, passed_after = segment((token, used, passed))
        assert used_after is used
        assert passed_after is passed


def test_only_what_is_written_later_is_copied():
    segment = CheckpointedSegment(relay_body(written_later=frozenset({1})))
    seen = []
    run = segment._run_again

    def noted(*values: Any, **options: Any) -> tuple[Any, ...]:
        seen.append(values)
        return run(*values, **options)

    segment._run_again = noted  # type: ignore[method-assign]
    used, passed = torch.ones(2, 3), torch.zeros(())
    for _ in range(2):
        segment((torch.zeros((), requires_grad=True), used, passed))
        assert seen[-1][0] is used
        assert seen[-1][1] is None  # handed on, and not used


def test_a_mode_in_which_inputs_are_written_is_told_from_one_in_which_they_are_not():
    def body() -> SegmentBody:
        graph = fx.Graph()
        given = graph.placeholder("given")
        training = graph.get_attr("training")
        dropped = graph.call_function(torch.dropout, (given, 0.5, training))
        # A view of the input in eval mode, a value of its own in train mode.
        written = graph.call_method("mul_", (dropped, 2.0))
        made = graph.call_function(torch.mul, (written, graph.get_attr("weight")))
        graph.output((made,))
        weight = {"weight": nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))}
        return SegmentBody(name="modes", graph=graph, parameters=weight)

    results = []
    for kind in (Segment, CheckpointedSegment):
        segment = kind(body())
        found = []
        for training in (True, True, False, False, True):
            segment.train(training)
            torch.manual_seed(0)
            token = torch.zeros((), requires_grad=True)
            _, made = segment((token, torch.ones(2, 3)))
            segment.zero_grad()
            made.sum().backward()
            found += [made.detach(), *map(gradient, segment.parameters())]
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
