"""Copies and dropouts that one mode alone runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner.capture import capture
from tests.capture.test_recorder import check
from tests.capture.toys import Toy
from tests.captured import BATCH, rerun, seeded


class Inner(nn.Module):
    """Does something to its input in one mode alone."""

    def __init__(self, act: Callable[[Tensor], Tensor], *, training: bool) -> None:
        super().__init__()
        self.act, self.on_in = act, training
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(x) if self.training is self.on_in else x
        return self.linear(y) + x


class Block(Toy):
    def __init__(self, act: Callable[[Tensor], Tensor], *, training: bool) -> None:
        super().__init__()
        self.inner = Inner(act, training=training)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.inner(torch.tanh(self.first(x))))


class OnInTraining(Toy):
    """A dropout module that is called in train mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            h = self.dropout(h)
        return self.second(h)


def differing(model: nn.Module) -> list[str]:
    notes = check(model).assumptions
    return [note for note in notes if "train and eval mode differ" in note]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "act",
    [
        lambda x: x.contiguous(),
        lambda x: x.clone(),
        lambda x: x.float().contiguous(),
        lambda x: x.to(x.dtype),
    ],
    ids=["contiguous", "clone", "two", "to"],
)
def test_a_copy_in_one_mode_makes_no_leaf(act: Callable[[Tensor], Tensor], training):
    assert not differing(Block(act, training=training))


def test_a_dropout_function_in_train_mode_only_makes_no_leaf():
    assert not differing(Block(lambda x: F.dropout(x, 0.5), training=True))


def test_a_dropout_module_in_train_mode_only_is_off_in_eval_mode():
    model = seeded(OnInTraining())
    graph = capture(model, BATCH)
    outputs = []
    for training in (True, False):
        model.train(training)
        results = []
        for run in (model, lambda x: rerun(graph, model, [x])):
            torch.manual_seed(0)
            results.append(run(BATCH))
        assert torch.equal(*results)
        outputs.append(results[0])
    assert not torch.equal(*outputs)
    assert not differing(model.train())


def test_a_dropout_that_the_user_keeps_on_is_no_identity_in_eval_mode():
    class Root(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.inner = OnInTraining()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.inner(self.first(x)))

    model = Root().eval()
    model.inner.dropout.train()
    assert differing(model)


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x.detach(),
        lambda x: x.double().float(),
        lambda x: x * 2,
        lambda x: F.dropout(x, 0.5),
    ],
    ids=["detach", "rounds", "scales", "dropout"],
)
def test_what_changes_values_or_gradients_in_eval_mode_alone_stays_a_leaf(act):
    assert differing(Block(act, training=False))


def test_a_copy_without_gradients_is_none():
    def act(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x.clone()

    assert differing(Block(act, training=True))


@pytest.mark.parametrize("training", [True, False])
def test_a_copy_that_is_written_later_on_is_none(training: bool):
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.clone() if self.training is training else x
            return y.add_(1) * x

    class Outer(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Writes()

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x) * 1
            return self.second(self.inner(h) + h)

    assert differing(Outer())


def test_a_module_that_differs_for_another_reason_does_not_take_copies_along():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.copies = Inner(lambda x: x.contiguous(), training=True)
            self.scales = Inner(lambda x: x * 2, training=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.scales(self.copies(x))

    (note,) = differing(Two())
    assert note.startswith("scales runs as a whole")


def test_a_size_that_is_read_beside_a_copy_still_makes_a_guard():
    class Limited(Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if self.training:
                h = h.contiguous()
            if h.shape[0] > 64:
                raise ValueError("too many")
            return self.second(h)

    graph = check(Limited())
    assert any("64" in guard.text for guard in graph.guards)


class WrittenByDropout(Toy):
    """Reads a tensor that dropout has written, in train mode, under its first name."""

    def __init__(self, drop: Callable[..., Tensor] | nn.Module) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        dropped = (
            self.drop(h)
            if isinstance(self.drop, nn.Module)
            else self.drop(h, training=self.training, inplace=True)
        )
        return self.second(h) + dropped


@pytest.mark.parametrize(
    "drop", [nn.Dropout(0.5, inplace=True), F.dropout, F.alpha_dropout]
)
def test_dropout_in_place_has_the_same_readers_in_both_modes(
    drop: Callable[..., Tensor] | nn.Module,
):
    assert differing(WrittenByDropout(drop)) == []
