"""How hypothesis runs here: few, equal examples every time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

slow = [HealthCheck.filter_too_much, HealthCheck.too_slow]
quick = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=slow
)
thorough = settings(quick, max_examples=40)
few = settings(quick, max_examples=15)
"""For examples that each start a solver."""
