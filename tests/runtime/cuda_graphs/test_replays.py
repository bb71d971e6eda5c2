"""A replayed segment computes what the segment computes, whatever is in flight."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.cuda_graphs import CudaRecorder, Replays
from partitioner.runtime.cuda_graphs.refusal import NotReplayedError
from partitioner.runtime.gradient_sums import GradientSums
from partitioner.runtime.segment import SegmentBody, SegmentProgram
from tests.runtime.cuda_graphs.call_again import CallAgain

WIDTH, ROWS = 8, 6
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ),
]

pytestmark = pytest.mark.parametrize("device", DEVICES)


class Block(nn.Module):
    """Normalisation with statistics, dropout, and a weight that is used twice."""

    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.dropout(self.norm(torch.tanh(self.one(x)))))


def program(modules: dict[str, nn.Module], device: str, **body: Any) -> SegmentProgram:
    """Return modules in a row; also returned: what goes in, and a number."""
    graph = fx.Graph()
    first = value = graph.placeholder("value")
    scale = graph.placeholder("scale")
    for path in modules:
        value = graph.call_module(path, (value,))
    graph.output((graph.call_function(torch.mul, (value, scale)), first, scale))
    kind = CheckpointedSegment if body.get("checkpointed") else SegmentProgram
    made = kind(SegmentBody(name="replayed", graph=graph, modules=modules, **body))
    return made.to(device).train()


class Stage:
    """A segment and what DeepSpeed's engine does with it."""

    def __init__(self, segment: SegmentProgram, device: str, *, replayed: bool) -> None:
        self.segment = segment
        self.sums = GradientSums()
        self.device = device
        self.in_flight: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen: list[Tensor] = []
        if replayed:
            recorder = CudaRecorder() if device == "cuda" else CallAgain(self.written)
            segment.replays = Replays(segment, self.sums, recorder)
            self.recorder = recorder

    def written(self) -> Iterator[Tensor]:
        yield from self.segment.buffers()
        yield from self.sums.memory(self.segment.parameters()).values()

    @property
    def replayed(self) -> int:
        assert self.segment.replays is not None
        return self.segment.replays.replayed

    @property
    def why_not(self) -> str:
        assert self.segment.replays is not None
        return self.segment.replays.why_not

    def forward(self, number: int, *, rows: int = ROWS, needs: bool = True) -> None:
        x = inputs(number, rows).to(self.device).requires_grad_(needs)
        made, passed, scale = self.segment.run(x * 1, 2.0)
        assert scale == 2.0
        assert passed.shape == x.shape
        self.seen.append(made.detach().clone())
        self.in_flight[number] = (x, made + passed)

    def backward(self, number: int) -> None:
        x, made = self.in_flight.pop(number)
        made.backward(inputs(-number, len(made)).to(self.device))
        if x.grad is not None:
            self.seen.append(x.grad)

    def batch(self, order: str, **options: Any) -> None:
        """Run passes, ``F0 F1 B0 B1``, and a step of gradient descent."""
        if self.segment.replays is not None:
            self.segment.replays.begin_batch()
        for each in order.split():
            number = int(each[1:])
            if each[0] == "F":
                self.forward(number, **options)
            else:
                self.backward(number)
        with torch.no_grad():
            for weight in self.segment.parameters():
                if weight.grad is not None:
                    self.seen.append(weight.grad.clone())
                    weight.sub_(0.1 * weight.grad)
                weight.grad = None


def inputs(number: int, rows: int) -> Tensor:
    return torch.randn(
        rows, WIDTH, generator=torch.Generator().manual_seed(1000 + number)
    )


def two(
    device: str, modules: dict[str, nn.Module] | None = None, **body: Any
) -> tuple[Stage, Stage]:
    """Return a stage as it is, and an equal one that is replayed."""
    torch.manual_seed(0)
    modules = modules or {"blocks.0": Block(), "blocks.1": Block()}
    plain = Stage(
        program(copy.deepcopy(modules), device, **body), device, replayed=False
    )
    return plain, Stage(program(modules, device, **body), device, replayed=True)


def assert_equal(plain: Stage, replayed: Stage) -> None:
    for found, expected in zip(replayed.seen, plain.seen, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    states = zip(
        replayed.segment.state_dict().items(),
        plain.segment.state_dict().items(),
        strict=True,
    )
    for (name, found), (_, expected) in states:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


ORDERS = ["F0 B0 F1 B1", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 B1 B2 F3 B3"]


def run(stage: Stage, orders: list[str], **options: Any) -> None:
    torch.manual_seed(7)
    for order in orders:
        stage.batch(order, **options)


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_micro_batches_in_flight_compute_as_without_replays(device, order, needs):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, [order] * 3, needs=needs)
    assert_equal(plain, replayed)
    assert replayed.replayed == 2 * order.count("F")
    assert replayed.why_not == ""


def counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of each function that is recorded."""
    recorded: list[str] = []
    record = stage.recorder.record

    def told(function: Any, pool: Any) -> Any:
        recorded.append(function.__name__)
        return record(function, pool)

    monkeypatch.setattr(stage.recorder, "record", told)
    return recorded


def test_as_many_are_recorded_as_are_in_flight(device, monkeypatch):
    _, replayed = two(device)
    recorded = counted(replayed, monkeypatch)
    run(replayed, ["F0 F1 B0 F2 B1 F3 B2 B3"] * 3)
    assert len(recorded) == 2 * 2  # two in flight, each with a forward and a backward


def test_recomputed_segments_need_one_recording_for_all(device):
    modules = {"blocks.0": nn.Linear(WIDTH, WIDTH), "blocks.1": nn.GELU()}
    plain, replayed = two(device, modules, checkpointed=True)
    for stage in (plain, replayed):
        run(stage, ["F0 F1 F2 B0 B1 B2"] * 3)
    assert_equal(plain, replayed)
    assert replayed.replayed == 6


class Statistics(nn.BatchNorm1d):
    """Statistics that no counter of calls goes with."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, training=True)


@pytest.mark.parametrize(
    "module", [nn.Dropout(0.5), nn.BatchNorm1d(WIDTH), Statistics(WIDTH)]
)
def test_what_would_draw_or_count_twice_is_recomputed_as_it_is(device, module):
    modules = {"0": nn.Linear(WIDTH, WIDTH), "1": module}
    plain, replayed = two(device, modules, checkpointed=True)
    for stage in (plain, replayed):
        run(stage, ["F0 F1 B0 B1"] * 2)
    assert_equal(plain, replayed)
    assert replayed.replayed == 0
    assert "recomputed" in replayed.why_not


def test_other_shapes_run_as_they_are(device):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 2)
        stage.batch("F1 F2 B1 B2", rows=ROWS + 1)
        stage.batch("F3 B3")
    assert_equal(plain, replayed)
    assert replayed.replayed == 2


def test_changes_of_the_module_are_recorded_anew(device):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 3)
        block: Any = stage.segment.get_submodule("blocks.0")
        block.one.weight.requires_grad_(False)  # frozen
        block.norm.eval()
        for _ in range(3):
            stage.batch("F1 F2 B1 B2")
        block.one.weight.data = block.one.weight.data.clone()  # moved
        for _ in range(2):
            stage.batch("F1 F2 B1 B2")
    assert_equal(plain, replayed)
    assert replayed.replayed == 2 + 4 + 2


def test_a_number_that_changes_is_recorded_anew(device, monkeypatch):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 2)
        block: Any = stage.segment.get_submodule("blocks.0")
        block.dropout.p = 0.75
    recorded = counted(replayed, monkeypatch)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 3)
    assert_equal(plain, replayed)
    assert recorded == ["_forward", "_backward"]


class OwnCheckpoint(nn.Module):
    """Recomputes by itself, and so reads its weights during backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inside = checkpoint(
            self.inner, self.outer(x), use_reentrant=True, preserve_rng_state=False
        )
        found: Tensor = self.outer(inside)
        return found


@pytest.mark.parametrize("checkpointed", [False, True])
def test_modules_that_recompute_by_themselves_are_trained(device, checkpointed):
    plain, replayed = two(device, {"only": OwnCheckpoint()}, checkpointed=checkpointed)
    for stage in (plain, replayed):
        run(stage, ["F0 F1 B0 B1"] * 3)
    assert_equal(plain, replayed)
    assert replayed.replayed == 4


def test_gradients_add_to_what_is_there(device):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 2)
        for weight in stage.segment.parameters():
            weight.grad = torch.ones_like(weight)
        stage.batch("F1 F2 B1 B2")
        stage.batch("F1 F2 B1 B2")
    assert_equal(plain, replayed)


def test_a_forward_without_backward_gives_its_memory_back(device, monkeypatch):
    _, replayed = two(device)
    run(replayed, ["F0 B0"])
    recorded = counted(replayed, monkeypatch)
    for _ in range(3):
        replayed.batch("F1")
        replayed.in_flight.clear()
    assert len(recorded) == 1
    assert replayed.replayed == 3


def test_a_second_backward_is_refused(device):
    _, replayed = two(device)
    run(replayed, ["F0 B0"])
    assert replayed.segment.replays is not None
    replayed.segment.replays.begin_batch()
    x = inputs(0, ROWS).to(device).requires_grad_()
    made, *_ = replayed.segment.run(x * 1, 2.0)
    made.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeGuardError, match="ran twice"):
        made.sum().backward()


def test_in_eval_mode_nothing_is_replayed(device):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 2)
        stage.segment.eval()
        stage.forward(1)
        stage.backward(1)
        stage.segment.train()
    assert_equal(plain, replayed)
    assert replayed.replayed == 1


def test_without_gradients_nothing_is_replayed(device):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, ["F0 B0"] * 2)
        stage.segment.eval()
        with torch.no_grad():
            stage.seen.append(stage.segment.run(inputs(5, ROWS).to(device), 2.0)[0])
        stage.segment.train()
        stage.batch("F0 B0")
    assert_equal(plain, replayed)
    assert replayed.replayed == 2


class TwoWays(nn.Module):
    """Returns two values, of which the caller may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x), self.right(x)


def test_what_nothing_comes_of_has_no_gradient(device):
    modules = {"two": TwoWays(), "first": First()}
    plain, replayed = two(device, modules)
    for stage in (plain, replayed):
        run(stage, ["F0 F1 B0 B1"] * 3)
        right: Any = stage.segment.get_submodule("two.right")
        assert right.weight.grad is None
    assert_equal(plain, replayed)
    assert replayed.replayed == 4


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0]


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


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach().add_(1) * 2


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_waits_for_the_device_ends_the_run(device):
    if device == "cpu":
        pytest.skip("the host can wait for itself")
    _, stage = two(device, {"only": Asks()})
    run(stage, ["F0 B0"])
    with pytest.raises(RuntimeGuardError, match="forward of segment 'replayed'"):
        stage.batch("F0 B0")
