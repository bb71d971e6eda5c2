"""Tests of partitioner.report.verification."""

from __future__ import annotations

import math

from partitioner.report.verification import verification_text
from tests.report.documents import verification_document


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_passed_verification() -> None:
    lines = squeezed(verification_text(verification_document()))
    assert "Mode Outputs Gradients Buffers" in lines
    assert "train 0 2.0e-07 0" in lines
    assert "eval 3.0e-06 2.0e-07 0" in lines
    assert lines[-1] == "ok: every difference is at most 1.0e-05, relative"


def test_failed_verification_marks_what_is_above() -> None:
    modes = {"train": {"max_output_error": 1e-6, "max_gradient_error": 0.25}}
    document = verification_document(
        ok=False, modes=modes, per_parameter={"a": 0.25, "b": 1e-5, "c": 1.1e-5}
    )
    lines = squeezed(verification_text(document))
    assert "train 1.0e-06 ! 2.5e-01 –" in lines
    assert lines[-4:-1] == ["a ! 2.5e-01", "c ! 1.1e-05", "b 1.0e-05"]
    assert lines[-1].startswith("FAILED: a difference is above 1.0e-05")


def test_not_a_number_is_marked_and_comes_first() -> None:
    modes = {"train": {"max_output_error": math.nan}}
    document = verification_document(
        ok=False, modes=modes, per_parameter={"a": 9.0, "b": math.nan, "c": math.inf}
    )
    lines = squeezed(verification_text(document))
    assert "train ! nan – –" in lines
    assert lines[-4:-1] == ["b ! nan", "c ! inf", "a ! 9.0e+00"]


def test_equal_gradients_are_not_listed() -> None:
    assert "ln_f.bias" not in verification_text(verification_document())
    exact = verification_document(per_parameter={"ln_f.bias": 0.0})
    assert "Gradients that differ" not in verification_text(exact)


def test_only_the_worst_parameters_are_listed() -> None:
    errors = {f"p{n}": n * 1e-9 for n in range(1, 13)}
    text = verification_text(verification_document(per_parameter=errors))
    shown = [line.split()[0] for line in text.splitlines() if line.strip()[:1] == "p"]
    assert shown == [f"p{n}" for n in range(12, 2, -1)]


def test_fits_80_columns_and_keeps_brackets() -> None:
    name = "conditional_generation.decoder[red]" * 3
    text = verification_text(verification_document(per_parameter={name: 1e-7}))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert name in "".join(text.replace("1.0e-07", "").split())
