"""Bytes, FLOPs, seconds and counts as short text; the only place that formats them."""

from __future__ import annotations

import math

__all__ = [
    "format_bytes",
    "format_count",
    "format_error",
    "format_flops",
    "format_seconds",
    "format_share",
]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "K", "M", "G", "T", "P", "E")
_SECONDS = ("ns", "µs", "ms", "s")


def format_bytes(size_bytes: float) -> str:
    """Format a size in binary units: 1 KiB is 1,024 bytes.

    Args:
        size_bytes: A size in bytes, not negative.

    Returns:
        Three significant digits and a unit; whole bytes below 1 KiB.

    Example:
        >>> format_bytes(24 * 2**30)
        '24.0 GiB'
    """
    number, unit = _scale(size_bytes, 1024, _BINARY)
    return f"{number} {unit}"


def format_flops(flops: float) -> str:
    """Format a number of floating-point operations in decimal units.

    A multiply-add counts as two operations.

    Args:
        flops: A number of operations, not negative.

    Returns:
        Three significant digits and a unit; 1 GFLOP is 10**9 operations.

    Example:
        >>> format_flops(1_230_000_000)
        '1.23 GFLOP'
    """
    number, unit = _scale(flops, 1000, _DECIMAL)
    return f"{number} {unit}FLOP"


def format_count(count: float) -> str:
    """Format a count (of parameters, say) in decimal units.

    Args:
        count: A whole number, not negative.

    Returns:
        Three significant digits and K, M, G or T; the number itself below 1,000.

    Example:
        >>> format_count(124_439_808)
        '124 M'
    """
    number, unit = _scale(count, 1000, _DECIMAL)
    return f"{number} {unit}".rstrip()


def format_seconds(time_s: float) -> str:
    """Format a duration.

    Args:
        time_s: A duration in seconds, not negative.

    Returns:
        Three significant digits in ns, µs, ms or s.

    Example:
        >>> format_seconds(0.0123)
        '12.3 ms'
    """
    if time_s == 0:
        return "0 s"
    number, unit = _scale(time_s * 1e9, 1000, _SECONDS)
    return f"{number} {unit}"


def format_share(share: float) -> str:
    """Format a part of a whole as a percentage with three significant digits.

    Args:
        share: A fraction; 1 is the whole.

    Returns:
        The percentage, with its sign.

    Example:
        >>> format_share(0.2727)
        '27.3 %'
    """
    return f"{_digits(share * 100)} %"


def format_error(error: float) -> str:
    """Format a relative error; exact zero is told apart from a small number.

    Args:
        error: A relative error without unit.

    Returns:
        ``0``, or scientific notation with two significant digits, ``nan`` or ``inf``.

    Example:
        >>> format_error(1.234e-7)
        '1.2e-07'
    """
    return "0" if error == 0 else f"{error:.1e}"


def _scale(value: float, base: int, units: tuple[str, ...]) -> tuple[str, str]:
    """Divide by ``base`` until the number, rounded too, is below it."""
    if not math.isfinite(value):
        return str(value), units[-1]
    if value == int(value) and value < base:
        return str(int(value)), units[0]
    for unit in units[:-1]:
        number = _digits(value)
        if max(value, float(number)) < base:
            return number, unit
        value /= base
    return _digits(value), units[-1]


def _digits(value: float) -> str:
    """Write three significant digits, at most two of them decimals, no exponent."""
    rounded = float(f"{value:.3g}")
    magnitude = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:.{min(2, max(0, 2 - magnitude))}f}"
