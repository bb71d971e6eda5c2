"""Fakes look like the weights they stand for, and cost nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from partitioner.capture import capture
from partitioner.capture.fakes import cache_configs, caches_off, fake_weights
from partitioner.capture.untouched import untouched
from tests.capture.toys import Steps, Toy
from tests.captured import BATCH, captured
from tests.models import MODELS


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fakes_look_like_weights_on_a_real_device(device: str):
    with torch.device(device):
        model = nn.BatchNorm1d(6)
    with untouched(model), fake_weights(model, torch.bfloat16) as fakes:
        weight, mean = model.weight, model.running_mean
        assert isinstance(weight, nn.Parameter)
        assert weight.requires_grad
        assert weight.dtype == torch.bfloat16
        assert mean is not None
        assert mean.dtype == torch.float32  # as DeepSpeed keeps buffers
        assert weight.device.type == mean.device.type == "cpu"
        assert fakes.names[id(weight)] == "weight"
    assert model.weight.device.type == device
    assert model.weight.dtype == torch.float32


def test_tied_weights_share_one_fake_and_one_name():
    aliases = captured("gpt2").aliases
    assert aliases["lm_head.weight"] == "transformer.wte.weight"
    assert aliases["transformer.wte.weight"] == "transformer.wte.weight"


def test_a_module_registered_twice_has_two_names():
    class Twice(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.second(self.first(x)))

    aliases = capture(Twice(), BATCH).aliases
    assert aliases["again.weight"] == "first.weight"


def test_memory_order_is_kept():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with untouched(model), fake_weights(model, None):
        assert model.weight.is_contiguous(memory_format=torch.channels_last)


def test_recurrent_layers_follow_the_swap():
    model = nn.LSTM(6, 6)
    flat = list(model._flat_weights)
    with untouched(model), fake_weights(model, None):
        assert all(
            a is b for a, b in zip(model._flat_weights, model.parameters(), strict=True)
        )
        assert model._flat_weights[0] is not flat[0]
    assert all(a is b for a, b in zip(model._flat_weights, flat, strict=True))


def test_caches_are_off_only_meanwhile():
    model = MODELS["gpt2"].model()
    configs = cache_configs(model)
    assert model.config in configs
    with caches_off(configs):
        assert model.config.use_cache is False  # type: ignore[union-attr]
    assert model.config.use_cache is True  # type: ignore[union-attr]


class Frozen(OrderedDict[str, int]):
    """A configuration that refuses every change, as those of diffusers do."""

    def refuse(self, *_: Any, **__: Any) -> None:
        raise TypeError

    clear = update = pop = refuse  # type: ignore[assignment]


def test_a_container_that_refuses_changes_is_let_be():
    model = Toy()
    model.config = Frozen([("width", 6)])  # type: ignore[assignment]
    with untouched(model):
        model.train(not model.training)
    assert model.config == {"width": 6}


def disturb(model: Steps) -> None:
    model.count, model.first.weight = 5, nn.Parameter(torch.zeros(6, 6))
    model.log.append(1)
    model.register_buffer("late", torch.zeros(1))
    raise RuntimeError


def test_untouched_restores_after_an_error():
    model = Steps()
    weight = model.first.weight
    with pytest.raises(RuntimeError), untouched(model):
        disturb(model)
    assert (model.count, model.log) == (0, [])
    assert model.first.weight is weight
    assert not hasattr(model, "late")


@pytest.mark.parametrize("name", ["bert"])
def test_recording_in_bfloat16_casts_as_the_engine_will(name: str):
    graph = capture(MODELS[name].model(), MODELS[name].example(), dtype=torch.bfloat16)
    kinds = {
        meta.dtype
        for node in graph.graph.nodes
        if node.op == "call_module"
        for meta in node.meta["info"].outputs
    }
    assert torch.bfloat16 in kinds
    assert all(p.dtype == torch.float32 for p in graph.model.parameters())
    assert graph.dtype == torch.bfloat16
