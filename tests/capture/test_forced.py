"""Modules that draw which of their layers run are priced with all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.forced import EXTREMES, ForcedDraws
from partitioner.cost import price, resolve
from tests.capture.toys import Inside
from tests.captured import BATCH, seeded

LAYERS = 12


class Drops(nn.Module):
    """Leaves layers out by chance; each way compares the number otherwise."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(LAYERS))

    def runs(self) -> bool:
        if self.how == "below":
            return bool(torch.rand([]) >= 0.9)
        if self.how == "above":
            return torch.rand(1).item() < 0.1
        return bool(torch.rand(()) < 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.runs():
                x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("how", ["below", "above", "never"])
def test_the_price_is_that_of_all_layers(how: str):
    graph = capture(seeded(Inside(Drops(how))), BATCH, leaf=["inner"])
    costed = price(graph, profile=resolve("cpu"))
    (node,) = graph.graph.find_nodes(op="call_module", target="inner")
    rows, width = BATCH.shape
    assert costed.costs[node].forward_flops == LAYERS * 2 * rows * width * width
    # Autograd keeps what each layer reads, and what the last tanh returns.
    assert costed.costs[node].saved_bytes == (LAYERS + 1) * 4 * rows * width
    noted = [note for note in graph.assumptions if "the draw that runs most" in note]
    assert bool(noted) is (how != "never")
    assert all(note.startswith("inner draws what it runs") for note in noted)


def test_only_single_numbers_are_steered():
    with ForcedDraws(EXTREMES[1]) as forced:
        assert torch.rand(6).any()
        assert not forced.used
        assert torch.rand(()).item() == 0
        assert torch.rand_like(torch.ones(1)).item() == 0
        assert forced.used


def test_the_largest_number_is_one_that_torch_can_draw():
    assert 1 - 2**-23 < EXTREMES[0] < 1
    assert torch.tensor(EXTREMES[0]).item() == EXTREMES[0]
