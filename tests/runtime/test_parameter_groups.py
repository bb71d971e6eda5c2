"""Parameter groups: what a pattern means, and what is refused; without processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.errors import OptionError
from partitioner.runtime.parameter_groups import parameter_groups


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(self.norm(x))
        return result


class Model(nn.Module):
    """Two blocks between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


class Stage:
    """This rank's part: the parameters under some prefixes, by their first names."""

    def __init__(self, model: nn.Module, *prefixes: str) -> None:
        self.held = {
            name: parameter
            for name, parameter in model.named_parameters()
            if name.startswith(prefixes)
        }
        self.placeholders: dict[int, nn.Parameter] = {}
        self.loss_fn: Any = None

    def original_named_parameters(self) -> Any:
        return iter(self.held.items())

    def placeholder(self, index: int) -> nn.Parameter:
        return self.placeholders.setdefault(index, nn.Parameter(torch.zeros(1)))


def names(model: nn.Module, groups: list[dict[str, Any]]) -> list[list[str]]:
    by_id = {id(p): name for name, p in model.named_parameters()}
    return [[by_id.get(id(p), "placeholder") for p in g["params"]] for g in groups]


def grouped(rules: list[Any], *prefixes: str) -> list[list[str]]:
    model = Model()
    stage: Any = Stage(model, *(prefixes or ("",)))
    return names(model, parameter_groups(stage, model, rules))


def test_the_rest_is_the_last_group_and_options_are_passed_on():
    model = Model()
    stage: Any = Stage(model, "")
    rules = [{"params": "*.bias", "weight_decay": 0.0, "name": "biases"}]
    first, rest = parameter_groups(stage, model, rules)
    assert {k: v for k, v in first.items() if k != "params"} == {
        "weight_decay": 0.0,
        "name": "biases",
    }
    assert set(rest) == {"params"}
    assert names(model, [first, rest])[1] == [
        "embed.weight",
        "blocks.0.linear.weight",  # before what is less aligned
        "blocks.1.linear.weight",
        "blocks.0.norm.weight",
        "blocks.1.norm.weight",
    ]
    assert rules == [{"params": "*.bias", "weight_decay": 0.0, "name": "biases"}]


def test_classes_functions_and_other_names_of_a_tied_parameter():
    found = grouped(
        [
            {"params": [nn.LayerNorm]},
            {"params": lambda name, p: p.ndim == 1 and "linear" in name},
            {"params": ["head.weight"]},
        ]
    )
    assert found[:3] == [
        [f"blocks.{i}.norm.{name}" for i in range(2) for name in ("weight", "bias")],
        ["blocks.0.linear.bias", "blocks.1.linear.bias"],
        ["embed.weight"],
    ]
    assert found[3] == ["blocks.0.linear.weight", "blocks.1.linear.weight"]


def test_every_stage_has_all_groups_in_the_same_order():
    rules = [{"params": "embed.*"}, {"params": "blocks.1.*"}]
    first, second = (
        grouped(rules, "embed", "blocks.0"),
        grouped(rules, "blocks.1"),
    )
    assert [len(first), len(second)] == [3, 3]
    assert first[1] == ["placeholder"]
    assert second[0] == second[2] == ["placeholder"]
    assert len(second[1]) == 4


class Head:
    def __init__(self, loss_fn: nn.Module) -> None:
        self.loss_fn = loss_fn


def test_the_parameters_of_the_loss_are_trained_as_well():
    """Only the last stage holds them; their names begin with loss_fn."""
    model, loss = Model(), nn.Bilinear(2, 2, 1)
    last: Any = Stage(model, "blocks.1")
    first: Any = Stage(model, "embed")
    last.held |= {f"loss_fn.{name}": p for name, p in loss.named_parameters()}
    first.loss_fn = last.loss_fn = Head(loss)
    rules = [{"params": "loss_fn.*", "lr": 1.0}]
    (group, rest), (empty, _) = (
        parameter_groups(stage, model, rules) for stage in (last, first)
    )
    assert [id(p) for p in group["params"]] == [id(p) for p in loss.parameters()]
    assert len(rest["params"]) == 4
    assert names(model, [empty]) == [["placeholder"]]


def test_frozen_parameters_are_in_no_group():
    model = Model()
    model.blocks[0].requires_grad_(requires_grad=False)
    stage: Any = Stage(model, "")
    groups = parameter_groups(stage, model, [{"params": "blocks.*"}])
    assert names(model, groups)[0] == [
        f"blocks.1.{name}"
        for name in ("linear.weight", "norm.weight", "norm.bias", "linear.bias")
    ]
    assert names(model, groups)[1] == ["embed.weight"]


@pytest.mark.parametrize(
    ("rules", "message", "hint"),
    [
        ([{"params": "lora_*"}], "'lora_\\*' matches no parameter", "names are like"),
        ([{"params": "block.0.norm.bias"}], "matches no", "similar: blocks.0.norm.b"),
        ([{"params": [nn.Conv1d]}], "Conv1d matches no parameter", "names are"),
        (
            [{"params": "head.*"}, {"params": nn.Embedding}],
            r"'embed.weight' \(also head.weight\) is in groups 0 and 1 .*Embedding",
            "once",
        ),
        (["*.bias"], "group 0 is '\\*.bias'", "params"),
        ([{"lr": 1.0}], "group 0 is", "params"),
        ([{"params": []}], "no patterns", "leave it out"),
        ([{"params": [3]}], "pattern 3", "globs"),
        ([{"params": nn.Linear(1, 1)}], "pattern Linear", "globs"),
        ([{"params": int}], "pattern <class 'int'>", "globs"),
    ],
)
def test_what_is_wrong_is_named(rules: list[Any], message: str, hint: str):
    with pytest.raises(OptionError, match=message) as caught:
        grouped(rules)
    assert hint in caught.value.hint


def test_a_pattern_for_frozen_parameters_alone_is_refused():
    model = Model()
    model.blocks[0].requires_grad_(requires_grad=False)
    stage: Any = Stage(model, "")
    with pytest.raises(OptionError, match=r"'blocks.0.\*' matches is frozen"):
        parameter_groups(stage, model, [{"params": "blocks.0.*"}])
