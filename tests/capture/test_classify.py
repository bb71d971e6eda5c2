"""What is placed, what every stage rebuilds, and what runs in the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner.capture import capture
from partitioner.graph import ModelGraph, info
from tests.capture.toys import DrawsData, Toy
from tests.captured import BATCH, captured, cut_everywhere, seeded


def kinds(graph: ModelGraph) -> dict[str, str]:
    return {node.name: info(node).kind for node in graph.graph.nodes}


class Positions(Toy):
    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(6.0, device=x.device) / 6
        rate = torch.sigmoid(self.second.bias)
        return self.second(self.first(x) + positions) * rate + positions


def test_what_depends_on_neither_data_nor_weights_is_constant():
    found = kinds(capture(seeded(Positions()), BATCH))
    assert found["arange"] == found["div"] == "constant"
    assert found["sigmoid"] == "compute"


def test_a_buffer_that_nobody_writes_makes_constants():
    class Table(Toy):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(6), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            scale = self.table * 2
            return self.second(self.first(x) * scale) * scale

    found = kinds(capture(seeded(Table()), BATCH))
    assert found["mul"] == "constant"


def test_random_numbers_are_no_constants():
    graph = capture(seeded(DrawsData()), BATCH)
    found = kinds(graph)
    assert found["rand"] == "compute"
    (rand,) = [node for node in graph.graph.nodes if node.name == "rand"]
    assert info(rand).draws
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


class ReadsThenWrites(Toy):
    """An input is read for the output, and only then written."""

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.tanh(other)
        other.add_(1.0)
        return before, self.second(self.first(x))


class WritesThenReads(Toy):
    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        other.add_(1.0)
        return torch.tanh(other), self.second(self.first(x))


@pytest.mark.parametrize("toy", [ReadsThenWrites, WritesThenReads])
def test_readers_of_an_input_that_is_written_do_not_wait_for_the_loss(toy):
    graph = capture(seeded(toy()), (BATCH, BATCH.clone()))
    assert kinds(graph)["tanh"] == "compute"
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


class WithLabels(Toy):
    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.second(self.first(x))
        wanted = labels.clamp(min=0)
        return F.cross_entropy(logits, wanted), logits


def test_what_hangs_on_labels_runs_in_the_loss():
    labels = torch.tensor([0, 1, -1, 3])
    graph = capture(seeded(WithLabels()), (BATCH, labels))
    found = kinds(graph)
    assert found["clamp"] == found["cross_entropy"] == "late"
    assert found["second"] == "compute"
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_a_loss_with_weights_is_no_loss_part():
    class Weighted(WithLabels):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
            logits = self.second(self.first(x))
            loss = F.cross_entropy(logits, labels, reduction="none")
            return torch.exp(loss @ self.weight)

    labels = torch.tensor([0, 1, 1, 3])
    graph = capture(seeded(Weighted()), (BATCH, labels))
    assert kinds(graph)["cross_entropy"] == "compute"
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


@pytest.mark.parametrize(("name", "late"), [("gpt2-labels", True), ("gpt2", False)])
def test_a_hugging_face_loss_is_late(name: str, late: bool):
    graph = captured(name)
    found = {info(n).kind for n in graph.graph.nodes if "cross_entropy" in n.name}
    assert found == ({"late"} if late else set())


def test_labels_that_also_feed_the_model_are_relayed_and_late():
    """T5 shifts its labels to make the decoder's input."""
    graph = captured("t5-labels")
    (labels,) = [n for n in graph.graph.nodes if info(n).id == "input:labels"]
    users = {info(user).kind for user in labels.users}
    assert {"compute", "late"} <= users
