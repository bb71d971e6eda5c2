"""What is tried on a model leaves nothing behind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from partitioner.capture.untouched import untouched


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(1)
        self.plain = random.Random(1)
        self.numpy: list[Any] = [np.random.default_rng(1), np.random.RandomState(1)]

    def draw(self) -> list[float]:
        return [
            torch.rand((), generator=self.torch).item(),
            self.plain.random(),
            *(float(each.uniform()) for each in self.numpy),
        ]


def test_generators_of_every_kind_return_to_what_they_were_at():
    model = Keeps()
    with untouched(model):
        model.draw()
    assert model.draw() == Keeps().draw()
