"""Equal layers with given costs, whose layouts can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partitioner import Cost, DeviceProfile, Link, tune
from partitioner.cost import resolve
from partitioner.tuning import Tuning

LAYERS, WIDTH = 8, 32
FORWARD_S = 1e-3
STEP_OF_ONE_S = LAYERS * 3 * FORWARD_S
"""Forward and backward of one micro-batch through all layers."""
PARAMETER_BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
FREE = Link(bytes_per_s=1e18)
SLOW = Link(bytes_per_s=1e6)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


example_inputs = torch.zeros(2, WIDTH)


def profile(link: Link = FREE) -> DeviceProfile:
    return replace(
        resolve("h100"),
        link_bandwidth=link.bytes_per_s,
        link_latency_s=link.latency_s,
    )


def tuned(link: Link = FREE, **options: Any) -> Tuning:
    given: dict[str, Any] = {
        "gpus": 4,
        "batch": 64,
        "example_inputs": example_inputs,
        "device": profile(link),
        "gap": 0.0,
        "costs": {nn.Linear: Cost(forward_s=FORWARD_S, backward_s=2 * FORWARD_S)},
    }
    return tune(model(), **{**given, **options})
