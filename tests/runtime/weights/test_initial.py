"""Own initialisation: by the modules' rules, and equal however the model is cut."""

from __future__ import annotations

import functools
import hashlib
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner import InitialWeights
from partitioner.capture import capture
from partitioner.errors import OptionError, WeightsError
from tests.runtime.weights.building import (
    assert_equal,
    build,
    every_tensor,
    on_meta,
    stages_of,
    tensors,
)

X = torch.ones(2, 4)


def drawn_as(seed: int, path: str) -> None:
    """Start torch's generator as the documentation says for a module."""
    digest = hashlib.blake2b(f"{seed}:{path}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


class Parts(nn.Module):
    """Torch's own modules, a tie, and weights of a module's own that a cut parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4)
        self.inner = Gates()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner(self.norm(self.embed(ids)))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(4))
        self.second = nn.Parameter(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.first)
        nn.init.normal_(self.second)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.relu(x * self.first) + 1) * self.second


IDS = torch.tensor([1, 5, 8])


def test_values_follow_from_seed_and_path_alone():
    graph = capture(on_meta(Parts), IDS)
    before = torch.get_rng_state()
    cuts = [
        tensors(build(graph, InitialWeights(seed=3), stages, seed))
        for stages, seed in [(1, 0), (2, 0), (2, 1), (3, 2), (4, 3)]
    ]
    assert torch.equal(before, torch.get_rng_state())
    for cut in cuts:
        assert_equal(cut, cuts[0])
    found = cuts[0]
    for name in ("embed", "layers.0", "layers.2"):
        drawn_as(3, name)
        made = nn.Embedding(9, 4) if name == "embed" else nn.Linear(4, 4)
        assert torch.equal(found[f"{name}.weight"], made.weight.detach())
    assert not torch.equal(found["layers.0.weight"], found["layers.1.weight"])
    assert torch.equal(found["norm.running_var"], torch.ones(4))
    other = tensors(build(graph, InitialWeights(seed=4)))
    assert not torch.equal(found["layers.0.weight"], other["layers.0.weight"])


def test_a_cut_between_a_modules_own_weights_changes_none():
    """The seeds above do part them: else the rule above was not tested."""
    graph = capture(on_meta(Parts), IDS)
    held = [
        set(every_tensor(segment))
        for seed in range(8)
        for segment in build(graph, InitialWeights(), 2, seed)
    ]
    assert any(("inner.first" in names) != ("inner.second" in names) for names in held)


def test_hugging_faces_rules_are_used():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=50, n_positions=16,
        initializer_range=0.5,
    )  # fmt: skip
    found = stages_of(
        functools.partial(GPT2LMHeadModel, config),
        {"input_ids": torch.ones(2, 8, dtype=torch.long)},
        InitialWeights(),
    )
    plain = found["transformer.h.1.mlp.c_fc.weight"].std().item()
    assert plain == pytest.approx(0.5, 0.1)
    # The blocks scale the projections that end a residual branch.
    scaled = found["transformer.h.1.mlp.c_proj.weight"].std().item()
    assert scaled == pytest.approx(0.5 / (2 * config.n_layer) ** 0.5, 0.1)
    assert torch.equal(found["transformer.ln_f.weight"], torch.ones(64))
    assert not found["transformer.h.0.mlp.c_fc.bias"].any()


class Custom(nn.Module):
    """Initialised as many hand-written models are: ``self.apply(self._init_weights)``.

    Its scale has no rule but that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4))
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.25)
        if isinstance(module, Custom):
            nn.init.constant_(module.scale, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale


def halve(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        with torch.no_grad():
            module.weight.mul_(0.5)


def test_init_weights_of_the_users_own_and_a_function_to_apply():
    found = stages_of(Custom, X, InitialWeights())
    assert found["layers.0.weight"].unique().tolist() == [0.25]
    assert found["layers.0.bias"].unique().numel() > 1  # torch's own rule
    assert found["scale"].unique().tolist() == [2.0]
    found = stages_of(Custom, X, InitialWeights(apply=halve))
    assert found["layers.0.weight"].unique().tolist() == [0.125]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)) * self.scale


class PartOnly(Bare):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale[:2])


class Failing(Bare):
    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, float(self.fc.weight.abs().sum()))


class Reshaping(Bare):
    def reset_parameters(self) -> None:
        self.scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Bare, "nothing says what parameter 'scale' of Bare itself is at the beg"),
        (PartOnly, "nor a module around it has a rule that sets all of it"),
        (Failing, "Failing.reset_parameters of the model failed while the weights of"),
        (Reshaping, r"make parameter 'scale' a torch.float32 of shape \(3,\)"),
    ],
)
def test_a_parameter_without_a_sound_rule_is_named(model: Any, message: str):
    with pytest.raises(WeightsError, match=message):
        stages_of(model, X, InitialWeights(), stages=1)


def test_what_has_values_keeps_them():
    model = on_meta(Bare)
    model.scale = nn.Parameter(torch.full((4,), 3.0))
    (segment,) = build(capture(model, X), InitialWeights(), 1)
    held = segment.get_parameter("scale")
    assert held.tolist() == [3.0] * 4
    assert held is not model.scale
    with pytest.raises(OptionError, match="Bare has its values"):
        build(capture(Bare(), X), InitialWeights(), 1)


def test_rules_that_draw_from_other_generators_leave_them_as_they_were():
    class Other(Bare):
        def reset_parameters(self) -> None:
            nn.init.constant_(self.scale, random.random())

    state = random.getstate()
    found = [stages_of(Other, X, InitialWeights(seed=5), stages=1) for _ in "12"]
    assert random.getstate() == state
    assert torch.equal(found[0]["scale"], found[1]["scale"])


@pytest.mark.parametrize("arguments", [{"seed": "1"}, {"seed": True}, {"apply": 3}])
def test_arguments_are_checked(arguments: dict[str, Any]):
    with pytest.raises(OptionError):
        InitialWeights(**arguments)
