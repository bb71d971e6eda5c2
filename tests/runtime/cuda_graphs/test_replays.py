"""A replayed segment computes what the segment computes, whatever is in flight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partitioner.errors import RuntimeGuardError
from tests.runtime.cuda_graphs.stages import (
    DEVICES,
    ROWS,
    WIDTH,
    assert_equal,
    counted,
    inputs,
    run,
    two,
)

pytestmark = pytest.mark.parametrize("device", DEVICES)


ORDERS = ["F0 B0 F1 B1", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 B1 B2 F3 B3"]


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_micro_batches_in_flight_compute_as_without_replays(device, order, needs):
    plain, replayed = two(device)
    for stage in (plain, replayed):
        run(stage, [order] * 3, needs=needs)
    assert_equal(plain, replayed)
    assert replayed.replayed == 2 * order.count("F")
    assert replayed.why_not == ""


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


def test_shapes_that_come_to_stay_are_recorded_anew(device):
    plain, replayed = two(device)
    counts = []
    for stage in (plain, replayed):
        run(stage, ["F0 F1 B0 B1"] * 2)
        for rows in [ROWS + 1, ROWS, *[ROWS + 1] * 4]:
            stage.batch("F0 F1 B0 B1", rows=rows)
            counts.append(stage.replayed if stage is replayed else 0)
    assert_equal(plain, replayed)
    # Not after one batch of others, nor after one and one; after two in a row.
    assert counts[6:] == [2, 4, 4, 4, 6, 8]


def test_shapes_that_come_and_go_are_not_recorded_for_ever(device, monkeypatch):
    _, replayed = two(device, {"only": nn.Linear(WIDTH, WIDTH)})
    run(replayed, ["F0 B0"] * 2)
    recorded = counted(replayed, monkeypatch)
    for turn in range(1, 13):
        for _ in range(3):
            replayed.batch("F0 B0", rows=ROWS + turn % 2)
    assert len(recorded) == 2 * 8


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


def test_what_is_read_after_it_was_written_is_that_micro_batchs(device):
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    plain, replayed = two(device, {"only": module})
    for stage in (plain, replayed):
        run(stage, ["F0 F1 B0 F2 B1 B2"] * 3)
    assert_equal(plain, replayed)
    assert replayed.replayed == 6


class Scaled(nn.Linear):
    """Reads what is noted on its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * getattr(self.weight, "scale", 1.0)


def test_what_is_noted_on_a_weight_is_seen(device):
    module = Scaled(WIDTH, WIDTH)
    plain, replayed = two(device, {"only": module})
    for stage in (plain, replayed):
        stage.segment.get_parameter("only.weight").scale = 3.0  # type: ignore[attr-defined]
        run(stage, ["F0 F1 B0 B1"] * 2)
    assert_equal(plain, replayed)
    assert replayed.replayed == 2


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
