"""Where an exception was raised: the module by its path, and a line of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner import partition
from partitioner.emit.build import layer_specs
from partitioner.runtime.failures import place_of
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead


class Takes(nn.Module):
    """Fails in an operation, or in a module of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        taken = torch.index_select(x, 0, rows)
        hidden: Tensor = self.last(torch.tanh(taken))
        return hidden + self.table(words)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.takes = nn.Linear(4, 4), Takes()

    def forward(self, x: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        result: Tensor = self.takes(self.first(x), rows, words)
        return result


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    found = next(i for i, line in enumerate(lines) if text in line)
    return f"tests/runtime/test_failures.py:{first + found}"


def place(*, rows: int = 1, words: int = 1, pin: Any = None) -> str:
    """Run the stages at numbers that may be too large."""
    torch.manual_seed(0)
    inputs = torch.randn(3, 4), torch.ones(3, dtype=torch.int64)
    plan = partition(
        Net().train(),
        2,
        example_inputs=(*inputs, inputs[1]),
        micro_batches=2,
        device="h100",
        pin=pin,
    )
    stages = nn.Sequential(*(spec.build() for spec in layer_specs(plan.layers)))
    head = LossHead(loss, None, plan.layers.rebuild, LabelsLayout())
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any that torch raises
        head(stages((inputs[0], inputs[1] * rows, inputs[1] * words)), ()).backward()
    return place_of(caught.value, stages)


def loss(output: Tensor, _: Any) -> Tensor:
    return output.sum() / output.missing  # type: ignore[attr-defined]


def test_an_operation_of_a_module_that_a_cut_goes_through():
    found = place(rows=7, pin={"takes.last": 1, "first": 0})
    assert found.startswith("in 'takes'")
    assert found.endswith(line_of(Takes.forward, "index_select"))


def test_a_module_of_torchs_is_named_with_the_line_that_calls_it():
    found = place(words=9, pin={"takes.last": 1, "first": 0})
    assert found.startswith("in 'takes.table' (Embedding), ")
    assert found.endswith(line_of(Takes.forward, "self.table"))


def test_a_module_that_is_whole_shows_its_own_line():
    found = place(rows=7, pin={"takes": 1, "first": 0})
    assert found.startswith("in 'takes' (Takes), ")
    assert found.endswith(line_of(Takes.forward, "index_select"))


def test_the_loss_is_named():
    found = place()
    assert found.startswith("in the loss, ")
    assert found.endswith(line_of(loss, "missing"))


class Twice:
    """A hook that fails when it is called for the second time."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.ran += 1
        if self.ran == 2:
            raise RuntimeError("once is enough")


def test_what_runs_again_in_backward_is_named():
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
    ).train()
    plan = partition(
        net,
        2,
        example_inputs=torch.randn(3, 4),
        micro_batches=2,
        device="h100",
        checkpointing="all",
    )
    net.get_submodule("3.0").register_forward_hook(Twice())
    stages = nn.Sequential(*(spec.build() for spec in layer_specs(plan.layers)))
    head = LossHead(
        lambda output, _: output.sum(), None, plan.layers.rebuild, LabelsLayout()
    )
    computed = head(stages(torch.randn(3, 4)), ())
    with pytest.raises(RuntimeError, match="once is enough") as caught:
        computed.backward()
    found = place_of(caught.value, stages)
    assert found.startswith("in '3.0' (Linear), ")
    assert found.endswith(line_of(Twice.__call__, "raise"))


def test_what_is_around_the_stages_is_no_place():
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    assert place_of(caught.value, nn.Sequential()) == ""
