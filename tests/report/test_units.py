"""Tests of partitioner.report.units."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.report.units import (
    format_bytes,
    format_count,
    format_error,
    format_flops,
    format_seconds,
    format_share,
)

BINARY_POWER = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1020 KiB"),
        (24 * 1024**3, "24.0 GiB"),
        (80e9, "74.5 GiB"),
        (2**60, "1.00 EiB"),
        (2**75, "32800 EiB"),
    ],
)
def test_bytes_are_binary(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00 K"), (999_999, "1.00 M"), (124e6, "124 M")],
)
def test_counts_are_decimal(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [(0, "0 FLOP"), (12, "12 FLOP"), (9.996e9, "10.0 GFLOP"), (3e12, "3.00 TFLOP")],
)
def test_flops_are_decimal(flops: float, text: str) -> None:
    assert format_flops(flops) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0, "0 s"),
        (2.5e-10, "0.25 ns"),
        (4e-7, "400 ns"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (7200.0, "7200 s"),
        (math.inf, "inf s"),
    ],
)
def test_seconds_choose_their_unit(time_s: float, text: str) -> None:
    assert format_seconds(time_s) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.00 %"), (0.2727, "27.3 %"), (1.0, "100 %")]
)
def test_shares_are_percentages(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.0, "0"), (1.26e-7, "1.3e-07"), (math.nan, "nan"), (math.inf, "inf")],
)
def test_only_an_exact_zero_is_shown_as_zero(error: float, text: str) -> None:
    assert format_error(error) == text


@given(st.integers(min_value=0, max_value=2**70))
def test_bytes_read_back_within_three_digits(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    value = float(number) * 1024.0 ** BINARY_POWER[unit]
    assert value == pytest.approx(size_bytes, rel=0.0051)


@given(st.floats(min_value=1e-8, max_value=1e3))
def test_seconds_read_back_and_stay_short(time_s: float) -> None:
    text = format_seconds(time_s)
    number, unit = text.split()
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert float(number) * scale == pytest.approx(time_s, rel=0.0051)
    assert len(text) <= len("999 ms") + 1
