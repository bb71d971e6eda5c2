"""Checks of values that a model makes for itself stay in the recorded model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partitioner.capture import capture
from partitioner.emit import emit
from partitioner.graph import info
from partitioner.verify.run import run_cut
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, rerun, seeded, two_stages


class Checks(toys.Toy):
    """Refuses inputs that reach 2, and knows that 1 is less than 2."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.check(x < 2)
        self.check(torch.ones(3, device=x.device) < 2)
        return self.second(y)

    def check(self, condition: Tensor) -> None:
        torch._check_tensor_all_with(ValueError, condition, lambda: "too large")


class ChecksAtLast(toys.Toy):
    """Checks an input after all weights have been used."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.second(self.first(x)) - y
        torch._check_tensor_all(y < 2)
        return out


class ChecksShortly(Checks):
    def check(self, condition: Tensor) -> None:
        torch._check_tensor_all(condition)


class ChecksOnDevice(Checks):
    def check(self, condition: Tensor) -> None:
        torch._assert_async(condition.all())


KINDS = [Checks, ChecksShortly, ChecksOnDevice]


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_makes_no_leaf_and_changes_nothing(kind: type[Checks]):
    graph = capture(seeded(kind()), BATCH)
    assert not any("runs as a whole" in note for note in graph.assumptions)
    for found in cut_everywhere(graph):
        assert found.ok, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cut_model_checks(kind: type[Checks]):
    graph = capture(seeded(kind()), BATCH)
    layers = emit(graph, two_stages(graph, "first"))
    run_cut(graph, layers, [BATCH])
    with pytest.raises(RuntimeError):
        run_cut(graph, layers, [BATCH + 2])


def test_the_error_says_where_the_check_is():
    model = seeded(torch.nn.Sequential(Checks()))
    graph = capture(model, BATCH)
    with pytest.raises(RuntimeError, match=r"0 \(.*test_checks\.py:\d+\)"):
        rerun(graph, model, [BATCH + 2])


def test_a_check_of_a_label_is_not_left_out():
    graph = capture(seeded(ChecksAtLast()), (BATCH, BATCH))
    layers = emit(graph, two_stages(graph, "first"))
    run_cut(graph, layers, [BATCH, BATCH])
    with pytest.raises(RuntimeError, match="a check"):
        run_cut(graph, layers, [BATCH, BATCH + 2])


def test_a_check_of_known_values_is_made_at_once():
    graph = capture(seeded(Checks()), BATCH)
    checks = [n for n in graph.graph.nodes if n.target is torch._assert_async]
    assert [info(node).source.partition(":")[0] for node in checks] == [
        "tests/capture/test_checks.py"
    ]
    assert torch._check_tensor_all_with.__module__ == "torch"
