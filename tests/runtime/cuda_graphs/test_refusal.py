"""What a replay would leave out runs launch by launch, or ends the run."""

from __future__ import annotations

import copy
import operator
import random
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.cuda_graphs.refusal import NotReplayedError
from partitioner.runtime.segment import SegmentBody, SegmentProgram
from tests.runtime.cuda_graphs.stages import (
    DEVICES,
    ROWS,
    WIDTH,
    Stage,
    assert_equal,
    inputs,
    run,
    two,
)

pytestmark = pytest.mark.parametrize("device", DEVICES)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Collects(nn.Module):
    """Keeps what it has seen where no table of torch's is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Tensor]] = {"inputs": []}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["inputs"].append(x.detach())
        return x * len(self.seen["inputs"])


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found


class Remembers(nn.Module):
    """Replaces a buffer in place of writing to it."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.last
        self.last = x.detach().mean(0)
        return y


class Rolls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class RollsItsOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.generator.uniform()


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach().add_(1) * 2


class Views(nn.Module):
    """Returns one memory twice."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y.t()


class Hides(nn.Module):
    """Trains a weight that is in none of its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [torch.ones(WIDTH, requires_grad=True)]

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden[0].device != x.device:  # in the first batch
            self.hidden = [torch.ones(WIDTH, device=x.device, requires_grad=True)]
        return x * self.hidden[0]


REFUSED = [
    (Counts(), "change with each batch"),
    (Collects(), "forward changes 1.seen.inputs"),
    (Recurs(), "forward changes .*_flat_weights"),
    (Remembers(), "change with each batch"),
    (Rolls(), "random generator of the host"),
    (RollsItsOwn(), "random generator of the host"),
    (Writes(), "writes into what it is given"),
    (Hides(), "trains a tensor"),
    (nn.Flatten(0), "returns a part of what it is given"),
]


@pytest.mark.parametrize(
    ("module", "reason"), REFUSED, ids=[type(each).__name__ for each, _ in REFUSED]
)
def test_what_a_replay_would_leave_out_runs_as_it_is(device, module, reason, caplog):
    graph = fx.Graph()
    value = graph.placeholder("value")
    graph.output((graph.call_module("1", (value,)),))
    stages = []
    for replayed in (False, True):
        mine = copy.deepcopy(module)
        made = SegmentProgram(SegmentBody(name="r", graph=graph, modules={"1": mine}))
        stage = Stage(made.to(device).train(), device, replayed=replayed)
        random.seed(0)
        for _ in range(3):
            if made.replays is not None:
                made.replays.begin_batch()
            x = inputs(0, ROWS).to(device).requires_grad_()
            (found,) = made.run(x * 1)
            stage.seen.append(found.detach())
        stages.append(stage)
    plain, refused = stages
    for found, expected in zip(refused.seen[:2], plain.seen[:2], strict=True):
        assert torch.equal(found, expected)
    assert refused.replayed == 0
    assert re.search(reason, refused.why_not)
    assert caplog.text.count("runs without CUDA graphs") == 1


def hooked(module: nn.Linear) -> None:
    module.register_forward_hook(lambda *_: None)


def watched(module: nn.Linear) -> None:
    module.weight.register_post_accumulate_grad_hook(lambda _: None)


def elsewhere(module: nn.Linear) -> None:
    module.register_buffer("scale", torch.ones(1, device="meta"))


@pytest.mark.parametrize("change", [hooked, watched, elsewhere])
def test_modules_that_are_watched_or_elsewhere_run_as_they_are(device, change):
    _, stage = two(device, {"only": nn.Linear(WIDTH, WIDTH)})
    change(stage.segment.get_submodule("only"))
    run(stage, ["F0 B0"] * 3)
    assert stage.replayed == 0
    assert re.search("hooks|is on meta", stage.why_not)


def test_sparse_buffers_may_be(device):
    linear = nn.Linear(WIDTH, WIDTH)
    linear.register_buffer("rows", torch.eye(ROWS).to_sparse())
    _, stage = two(device, {"only": linear})
    run(stage, ["F0 B0"] * 2)
    assert stage.replayed == 1


def test_two_views_of_one_memory_are_not_returned_by_a_replay(device):
    graph = fx.Graph()
    both = graph.call_module("only", (graph.placeholder("value"),))
    views = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
    graph.output(tuple(views))
    made = SegmentProgram(SegmentBody(name="v", graph=graph, modules={"only": Views()}))
    stage = Stage(made.to(device).train(), device, replayed=True)
    assert made.replays is not None
    for _ in range(2):
        made.replays.begin_batch()
        made.run(inputs(0, ROWS).to(device))
    assert "several views" in stage.why_not


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (lambda device: torch.autocast(device, torch.bfloat16), "autocast"),
        (lambda _: torch.autograd.graph.save_on_cpu(), "hooks for saved tensors"),
    ],
)
def test_what_a_call_is_made_with_may_hinder_replays(device, context, reason):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        torch.manual_seed(7)
        for _ in range(2):
            with context(device):
                stage.batch("F0 B0")
    assert_equal(plain, replayed)
    assert replayed.replayed == 0
    assert reason in replayed.why_not


def test_what_comes_in_may_hinder_replays(device):
    _, stage = two(device)
    assert stage.segment.replays is not None
    with pytest.raises(TypeError):
        stage.segment.run(inputs(0, ROWS).to(device), [2.0])
    assert stage.why_not == "it is given a list"


def test_hooks_for_all_modules_hinder_replays(device):
    _, stage = two(device)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        run(stage, ["F0 B0"] * 2)
    finally:
        handle.remove()
    assert stage.replayed == 0
    assert "hooks for all modules" in stage.why_not


class OnlyForwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if ctx.needs_input_grad[0] and Breaks.broken:
            raise NotReplayedError("no backward here")
        return gradient


class Tells(torch.autograd.Function):
    """Tells of each backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, told: list[Tensor]) -> Tensor:
        ctx.told = told
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.told.append(gradient)
        return gradient, None


class Listens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Tells.apply(x, self.told)
        return found


def test_a_backward_that_leaves_something_in_python_ends_the_run(device):
    _, stage = two(device, {"only": Listens()})
    run(stage, ["F0 B0"])
    with pytest.raises(RuntimeGuardError, match=r"backward changes only\.told"):
        stage.batch("F0 B0")


class Breaks(nn.Module):
    broken = False

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = OnlyForwards.apply(x)
        return found


def test_a_backward_that_cannot_be_recorded_ends_the_run(device, monkeypatch):
    _, stage = two(device, {"only": Breaks()})
    run(stage, ["F0 B0"])
    monkeypatch.setattr(Breaks, "broken", True)
    with pytest.raises(
        RuntimeGuardError, match="'replayed' cannot be recorded"
    ) as found:
        stage.batch("F0 B0")
    assert "without cuda_graphs" in found.value.hint


class Asks(nn.Module):
    """Waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * (y.sum().item() > 0)


def asking() -> None:
    _, stage = two("cuda", {"only": Asks()})
    run(stage, ["F0 B0"] * 2)


def test_what_waits_for_the_device_ends_the_run(device):
    if device == "cpu":
        pytest.skip("the host can wait for itself")
    # In a process of its own: torch's generator there can draw no numbers any more.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        told = processes.submit(asking).exception()
    assert isinstance(told, RuntimeGuardError)
    assert "the forward of segment 'replayed'" in told.message
