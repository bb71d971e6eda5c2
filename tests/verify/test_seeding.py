"""Each draw has its own seed, wherever and in whatever order it runs."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.verify.run import run_original
from partitioner.verify.seeding import Seeding, seed
from tests.capture import toys
from tests.captured import BATCH, captured, cut_everywhere, seeded


class Draws(nn.Module):
    """Draws twice by itself and twice inside a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toys.PythonDropout()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.rand(6), torch.rand(6)
        return a, b, self.inner(x), self.inner(x), self.drop(x), self.drop(x)


def test_every_draw_is_another_one_and_the_same_each_time():
    graph = capture(seeded(Draws()), BATCH)
    runs = [
        run_original(graph, Seeding(graph), [BATCH])["train"].outputs for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    a, b, *dropped = runs[0]
    assert not torch.equal(a, b)
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[2], dropped[3])


def test_a_draw_is_the_same_in_both_modes():
    graph = capture(seeded(Draws()), BATCH)
    found = run_original(graph, Seeding(graph), [BATCH])
    first, second = found["train"].outputs[:2], found["eval"].outputs[:2]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_whole_and_opened_modules_draw_alike():
    graph = capture(seeded(Draws()), BATCH)
    for verification in cut_everywhere(graph, tries=8):
        assert verification.ok, verification


def test_all_generators_are_seeded():
    drawn = []
    for _ in range(2):
        seed("a@0:rand#0")
        drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert drawn[0] == drawn[1]
    seed("a@0:rand#1")
    assert torch.rand(()).item() != drawn[0][0]


def test_seeding_formats_no_stack_traces(monkeypatch):
    # torch's own manual_seed does so for devices that nobody uses: milliseconds each.
    monkeypatch.setattr("traceback.format_stack", None)
    seed("a@0:rand#0")


def test_whole_calls_start_at_their_own_numbers():
    graph = captured("gpt2")
    first = Seeding(graph).first_calls
    assert first["transformer.h.2@0"]["transformer.h.2.mlp"] == 0
    graph = capture(seeded(Draws()), BATCH)
    assert Seeding(graph).first_calls["inner@1"]["inner.first"] == 1
