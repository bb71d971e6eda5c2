"""Random numbers that Python looks at: only comparisons none can change pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.draws import Range, drawn_range, is_decided
from partitioner.errors import DataDependentError
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded

UNIT = Range(low=0.0, high=1.0, open=True)
READS: dict[str, Any] = {
    "normal": lambda: torch.randn(()).item() < -0.5,
    "never normal": lambda: torch.randn(()) < -1e9,
    "between": lambda: 0.4 < torch.rand(()).item() < 0.6,
    "tensor between": lambda: 0.4 < torch.rand(()) < 0.6,
    "dice": lambda: torch.randint(0, 10, ()) == 3,
    "last face": lambda: torch.randint(10, ()) >= 9,
    "coin": lambda: torch.randint(0, 2, (1,)).item(),
    "order": lambda: torch.randperm(2).tolist()[0],
    "number out of reach": lambda: torch.rand(()).item() < 0.0,
    "scaled": lambda: torch.rand(()) * 2 < 1.5,
    "filled": lambda: torch.empty(()).uniform_(-1, 1) < 0.0,
    "written after": lambda: torch.rand(()).mul_(3) > 1.0,
    "rare": lambda: torch.rand([]) < 1e-12,
    "how many": lambda: len(torch.nonzero(torch.rand(6) < 0.5)) > 5,
    "mask": lambda: torch.ones(6)[torch.rand(6) < 0.5].shape[0] > 5,
    "bernoulli": lambda: torch.bernoulli(torch.full((), 0.5)) == 1,
}
NO_READS: dict[str, Any] = {
    "rate 0": lambda: torch.rand([]) < 0.0,
    "rate 0, turned": lambda: torch.rand([]) >= 0,
    "rate 1": lambda: torch.rand([]) < 1,
    "constant left": lambda: torch.rand(()) > 1.0,
    "like": lambda: torch.rand_like(torch.ones(())) >= 1.5,
    "no face": lambda: torch.randint(0, 10, ()) == 10,
    "faces": lambda: torch.randint(10, ()) <= 9,
    "filled": lambda: torch.empty(()).uniform_(-1, 1) < -1.0,
    "bernoulli": lambda: torch.bernoulli(torch.full((), 0.5)) > 1,
    "place": lambda: torch.all(torch.randperm(4) == 4),
}


class Branch(toys.Toy):
    def __init__(self, condition: Any) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x if self.condition() else self.first(x))


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("seed", range(3))
def test_a_branch_that_other_numbers_could_change_is_refused(name: str, seed: int):
    torch.manual_seed(seed)
    with pytest.raises(DataDependentError, match="random number") as caught:
        capture(Branch(READS[name]), BATCH)
    assert "test_draws.py" in caught.value.source


@pytest.mark.parametrize("name", READS)
def test_a_submodule_with_such_a_branch_runs_as_a_whole(name: str):
    graph = capture(toys.Inside(Branch(READS[name])), BATCH)
    assert [n for n in graph.graph.nodes if n.target == "inner"]


@pytest.mark.parametrize("name", NO_READS)
def test_a_comparison_that_no_number_changes_is_recorded_through(name: str):
    graph = capture(seeded(toys.Inside(Branch(NO_READS[name]))), BATCH)
    assert [span for span in graph.spans if span.path == "inner"]
    assert any("compares a random number" in note for note in graph.assumptions)
    assert all(verification.ok for verification in cut_everywhere(graph))


def test_random_indices_are_data():
    class Shuffles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)[:, torch.arange(6)[torch.randperm(6)]])

    graph = capture(seeded(Shuffles()), BATCH)
    assert not any("random number" in note for note in graph.assumptions)
    assert all(verification.ok for verification in cut_everywhere(graph))


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("randint", (5, (2,)), {}, (0, 4)),
        ("randint", (2, 5, (2,)), {}, (2, 4)),
        ("randint", (), {"low": 1, "high": 3, "size": (2,)}, (1, 2)),
        ("randint", (1,), {"high": 3, "size": (2,)}, (1, 2)),
        ("uniform_", (None, -2.0, 3.0), {}, (-2.0, 3.0)),
        ("uniform_", (None,), {"to": 3.0}, (0.0, 3.0)),
        ("randperm", (4,), {}, (0, 3)),
    ],
)
def test_ranges_are_those_of_the_arguments(
    name: str, args: Any, kwargs: Any, expected: tuple[float, float]
):
    found = drawn_range(name, args, kwargs)
    assert found is not None
    assert (found.low, found.high) == expected


@pytest.mark.parametrize("name", ["randn", "normal_", "exponential_", "multinomial"])
def test_other_draws_may_be_any_number(name: str):
    assert drawn_range(name, (), {}) is None


def test_ends_of_the_unit_interval():
    assert is_decided("lt", UNIT, 1.0)
    assert not is_decided("le", Range(low=0.0, high=1.0), 0.0)
    assert is_decided("le", Range(low=0.0, high=1.0), 1.0)
    assert not is_decided("lt", Range(low=0.0, high=1.0), 1.0)
    assert not is_decided("gt", UNIT, 0.0)
    assert not is_decided("lt", UNIT, float("nan"))
    assert not is_decided("add", UNIT, 2.0)
    assert not is_decided("lt", UNIT, torch.tensor(2.0))
