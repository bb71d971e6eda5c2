"""Weights that view one storage: which do, and that no cut separates their users."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.overlaps import overlapping_weights
from partitioner.graph import info
from tests.captured import BATCH, cut_everywhere


class Views(nn.Module):
    """A matrix, and its first row as a scale that another layer reads."""

    def __init__(self, inside: nn.Module | None = None) -> None:
        super().__init__()
        table = torch.randn(6, 6)
        self.a = nn.Parameter(table)
        self.middle = nn.Linear(6, 6)
        self.b = nn.Parameter(table.view(36)[:6])
        self.last = nn.Linear(6, 6)
        self.inside = inside
        if inside is not None:
            inside.register_buffer("row", table[1])

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(torch.tanh(x @ self.a)) * self.b
        return self.last(h if self.inside is None else self.inside(torch.tanh(h)))


def weight_readers(model: nn.Module) -> set[str]:
    graph = capture(model, BATCH)
    (group,) = [g for g in graph.groups if any(n.name == "matmul" for n in g)]
    assert all(verification.ok for verification in cut_everywhere(graph))
    (note,) = [text for text in graph.assumptions if "share memory" in text]
    assert note.startswith("a, b")
    return {info(node).id for node in group}


def test_the_readers_of_views_of_one_storage_stay_together():
    assert weight_readers(Views()) == {"@0:0", "@0:2"}


def test_a_leaf_that_holds_such_a_view_stays_with_them():
    assert weight_readers(Views(nn.Linear(6, 6))) == {"@0:0", "@0:2", "inside@0"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_weights_that_share_bytes_count(device: str):
    model = nn.Module()
    flat = torch.empty(12, device=device)
    model.left = nn.Parameter(flat[:6])
    model.right = nn.Parameter(flat[6:])
    model.tied = model.left
    assert overlapping_weights(model) == []
    model.middle = nn.Parameter(flat[5:7])
    assert overlapping_weights(model) == [("left", "middle", "right")]
