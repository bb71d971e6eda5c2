"""A rank's copies of the user's modules are as the user made them, but for values."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.capture import capture
from partitioner.errors import WeightsError
from partitioner.runtime.segment import SegmentBody
from partitioner.runtime.weights import StageWeights
from partitioner.runtime.weights.copies import copy_with, like
from tests.models import MODELS
from tests.runtime.weights.building import every_tensor, on_meta

X = torch.ones(2, 4)


def filled(tensor: Tensor) -> Tensor:
    return like(tensor, torch.ones_like(tensor.detach(), device="cpu"))


class Watcher:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, module: nn.Module, *_: Any) -> None:
        self.seen.append(type(module).__name__)


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.calls = 0
        self.others = [self.weight]
        self.weight.no_decay = True  # type: ignore[attr-defined]
        self.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1


def test_classes_hooks_attributes_and_references_are_kept():
    model: Any = on_meta(lambda: nn.Sequential(Layer(), Layer()))
    watcher = Watcher()
    model[1].register_forward_pre_hook(watcher)
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    before = dict(vars(model[0].weight))
    made: Any
    made, memo = copy_with(model, filled)
    made(X)
    assert watcher.seen == ["Layer"]  # the user's own object, told of the copy
    assert [layer.calls for layer in made] == [1, 1]
    assert [layer.calls for layer in model] == [0, 0]
    assert isinstance(made[0].weight, nn.Parameter)
    assert vars(made[0].weight)["no_decay"]
    assert made[1].weight is made[0].weight is made[0].others[0]
    assert memo[id(model[1])] is made[1]
    assert not made[0].weight.requires_grad
    assert all(tensor.is_meta for tensor in every_tensor(model).values())
    assert vars(model[0].weight) == before


def test_an_lstm_runs_on_the_weights_it_was_given():
    model = on_meta(lambda: nn.LSTM(4, 3))
    made, _ = copy_with(model, filled)
    expected = nn.LSTM(4, 3)
    for parameter in expected.parameters():
        nn.init.ones_(parameter)
    assert torch.equal(made(X)[0], expected(X)[0])


def test_a_model_that_cannot_be_copied():
    model = on_meta(lambda: nn.Linear(4, 4))
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(WeightsError, match=r"\(Linear\) cannot be copied: .*lock"):
        copy_with(model, filled)


def test_what_a_forward_left_behind_is_no_obstacle():
    model = nn.Linear(4, 4)
    model.last = model(X)  # a tensor with a gradient
    made, _ = copy_with(model, filled)
    assert made.last is model.last


def test_configurations_follow_and_the_users_is_left_alone():
    """Segments switch ``use_cache`` off in the objects that their modules read."""
    entry = MODELS["llama"]
    model = on_meta(entry.model)
    graph = capture(model, entry.example())
    assert graph.configs, "nothing is switched: nothing was tested"
    body = SegmentBody(
        name="all",
        graph=graph.graph,
        modules={"model": model.get_submodule("model")},
        configs=graph.configs,
    )
    weights = StageWeights(graph.model, graph.aliases, _Ones(), (body,))
    given = weights.give(body)
    assert given.configs[0] is given.modules["model"].config
    assert given.configs[0] is not graph.configs[0]


class _Ones:
    """A source of ones."""

    def check(self, wanted: Any) -> None:
        del wanted

    def mapped(self, names: Any, tensor: Any) -> None:
        del names, tensor

    def values(self, wanted: Any, device: torch.device) -> dict[int, Tensor]:
        return {
            id(each.tensor): torch.ones_like(each.tensor.detach(), device=device)
            for each in wanted
        }


def test_a_tensor_that_no_source_could_give_is_named():
    graph = fx.Graph()
    graph.output((graph.get_attr("table"),))
    loose = torch.empty(4, device="meta")
    body = SegmentBody(name="0", graph=graph, buffers={"table": (loose, False)})
    with pytest.raises(WeightsError, match="segment 0 uses 'table', which is on the"):
        StageWeights(nn.Linear(4, 4), {}, _Ones(), (body,)).give(body)
