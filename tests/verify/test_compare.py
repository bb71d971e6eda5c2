"""Relative errors, and what counts as infinitely wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partitioner.verify.compare import (
    ModeErrors,
    Verification,
    compare,
    error,
    least_scale,
)
from partitioner.verify.run import Outcome

NAN, INF = float("nan"), float("inf")


def t(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("reference", "value", "expected"),
    [
        (t(1, 2, 4), t(1, 2, 4), 0.0),
        (t(1, 2, 4), t(1, 2, 5), 0.25),
        (t(0, 0), t(0, 0), 0.0),
        (t(0, 0), t(0, 1), INF),
        (t(1, NAN), t(1, NAN), 0.0),
        (t(1, NAN), t(2, NAN), 1.0),
        (t(1, 2), t(1, NAN), INF),
        (t(1, INF), t(1, INF), 0.0),
        (t(1, INF), t(1, -INF), INF),
        (t(1, 2), t(1, INF), INF),
        (t(1, 2), t(1, 2, 3), INF),
        (t(1, 2), t(1, 2, dtype=torch.float64), INF),
        (t(), t(), 0.0),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.tensor([3 + 4j]), torch.tensor([3 + 3j]), 0.2),
        (torch.tensor([2**62]), torch.tensor([2**62 + 2**40]), 2.0**-22),
    ],
)
def test_error(reference: Tensor, value: Tensor, expected: float):
    assert error(reference, value) == pytest.approx(expected)


def test_a_floor_keeps_rounding_of_zeros_small():
    assert error(t(1e-12), t(2e-12), floor=1e-3) == pytest.approx(1e-9)


def worst(of: float, cut: float, nudged: float, largest: float = 16) -> float:
    runs = [outcome(gradients={"a": t(a), "b": t(largest)}) for a in (of, cut, nudged)]
    return compare(runs[0], runs[1], runs[2:]).max_gradient_error


def test_what_rounding_moves_as_far_is_no_error():
    assert worst(1e-6, -1e-6, -1e-6) == 0
    assert worst(1e-6, 1e-3, -1e-6) > 1e-2


@pytest.mark.parametrize("cut", [0.0, 2e-6, -1e-6], ids=["lost", "double", "reversed"])
def test_a_gradient_that_is_only_small_is_compared(cut: float):
    assert worst(1e-6, cut, 1e-6 * (1 + 1e-6)) == pytest.approx(
        abs(cut - 1e-6) / (1e-3 * 16), rel=1e-3
    )


def test_what_moves_by_more_than_roundings_of_the_largest_explains_no_more():
    assert worst(1.0, 2.0, 3.0) == pytest.approx(1 / 1, rel=1e-3)


def test_no_gradients_have_no_scale():
    assert least_scale([None]) == 0.0
    assert least_scale([None, t(8, -16), t(1e-6)]) == 16 * 1e-3


def outcome(
    outputs: tuple[Tensor, ...] = (),
    gradients: dict[str, Tensor | None] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> Outcome:
    return Outcome(outputs=outputs, gradients=gradients or {}, buffers=buffers or {})


def test_the_worst_of_each_kind_is_reported():
    found = compare(
        outcome((t(1), t(4)), {"a": t(2), "b": t(1)}, {"m": t(10)}),
        outcome((t(1), t(5)), {"a": t(2), "b": t(1.5)}, {"m": t(11)}),
    )
    assert found.max_output_error == pytest.approx(0.25)
    assert found.max_gradient_error == pytest.approx(0.5)
    assert found.max_buffer_error == pytest.approx(0.1)
    assert found.per_parameter == pytest.approx({"a": 0.0, "b": 0.5})
    assert found.worst == found.max_gradient_error


def test_a_missing_output_is_infinitely_wrong():
    assert compare(outcome((t(1),)), outcome()).max_output_error == INF


@pytest.mark.parametrize(
    ("original", "cut", "wrong"),
    [
        (None, None, False),
        (None, t(0), False),
        (t(0), None, False),
        (None, t(1), True),
        (t(1), None, True),
    ],
)
def test_a_missing_gradient_is_zero(
    original: Tensor | None, cut: Tensor | None, wrong: bool
):
    found = compare(
        outcome(gradients={"a": original, "b": t(1)}),
        outcome(gradients={"a": cut, "b": t(1)}),
    )
    assert (found.max_gradient_error > 1e-5) is wrong


def verification(train: float, evaluation: float) -> Verification:
    modes = {
        name: ModeErrors(
            max_output_error=value,
            max_gradient_error=value / 2,
            max_buffer_error=0.0,
            per_parameter={"w": value / 2},
        )
        for name, value in (("train", train), ("eval", evaluation))
    }
    return Verification(modes=modes, tolerance=1e-5)


def test_either_mode_can_fail():
    assert verification(1e-6, 1e-6).ok
    assert not verification(1e-6, 1e-4).ok
    assert not verification(NAN, 0.0).ok
    found = verification(1e-3, 2e-3)
    assert found.max_output_error == 2e-3
    assert found.max_gradient_error == 1e-3
    assert found.per_parameter == {"w": 1e-3}


def test_the_text_says_the_verdict():
    assert str(verification(0.0, 0.0)).endswith("equal (tolerance 1e-05)")
    assert "DIFFERENT" in str(verification(1.0, 0.0))
    assert verification(1.0, 0.0).to_dict()["ok"] is False
