"""Which modules differ between two recordings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.align import differing_modules
from partitioner.capture.records import Ref
from tests.capture.test_merge import call, recording, span
from tests.capture.test_recorder import check
from tests.captured import BATCH


def test_a_module_that_does_less_differs_and_the_one_around_it_does_not():
    train = recording(
        call(0, "rand", Ref(0)), call(1, "mul", Ref(1)), call(2, "add", Ref(2)),
        spans=[span("block", 1, 4), span("block.drop", 1, 3, parent=0)],
    )  # fmt: skip
    evaluation = recording(
        call(0, "add", Ref(0)),
        spans=[span("block", 1, 2), span("block.drop", 1, 1, parent=0)],
    )
    found = differing_modules(train, evaluation)
    assert list(found) == ["block.drop"]
    assert found["block.drop"].reason == "rand (@0:0) runs in only one of them"
    assert found["block.drop"].source == "model.py:0"


def test_every_module_that_differs_is_found():
    spans = [span("a", 1, 2), span("b", 2, 3), span("c", 3, 4)]
    train = recording(*(call(n, "add", Ref(n)) for n in range(3)), spans=spans)
    names = ("mul", "add", "sub")
    evaluation = recording(
        *(call(n, name, Ref(n)) for n, name in enumerate(names)), spans=spans
    )
    assert list(differing_modules(train, evaluation)) == ["a", "c"]


def test_of_modules_around_one_another_the_outer_is_named():
    spans = [span("a", 1, 3), span("a.b", 2, 3, parent=0)]
    train = recording(call(0, "f", Ref(0)), call(1, "g", Ref(1)), spans=spans)
    evaluation = recording(call(0, "h", Ref(0)), call(1, "k", Ref(1)), spans=spans)
    assert list(differing_modules(train, evaluation)) == ["a"]


def test_a_module_called_in_one_mode_only_makes_its_caller_differ():
    train = recording(call(0, "f", Ref(0)), spans=[span("a", 1, 2)])
    evaluation = recording(call(0, "f", Ref(0)))
    found = differing_modules(train, evaluation)
    assert found[""].reason == "the call of a became f (@0:0)"


def test_equal_recordings_do_not_differ_whatever_their_arguments():
    train = recording(call(0, "f", Ref(0), 1), spans=[span("a", 1, 2)])
    evaluation = recording(call(0, "f", Ref(0), 2), spans=[span("a", 1, 2)])
    assert not differing_modules(train, evaluation)


def stack(blocks: int, on_forward: Callable[[], None]) -> nn.Module:
    """Blocks that are left out by chance, and tell when the first one runs."""

    class DropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return x * torch.rand(x.shape[0], 1, device=x.device).round()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop_path = nn.Linear(6, 6), DropPath()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop_path(torch.tanh(self.linear(x)))

    class Tells(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            on_forward()
            return super().forward(x)

    return nn.Sequential(Tells(6, 6), *(Block() for _ in range(blocks)))


def test_the_number_of_recordings_does_not_grow_with_the_modules_that_differ():
    def forwards(blocks: int) -> int:
        seen: list[int] = []
        capture(stack(blocks, lambda: seen.append(1)), BATCH)
        return len(seen)

    assert forwards(1) == forwards(5)


def test_modules_that_are_left_out_by_chance_can_be_cut_apart():
    check(stack(3, lambda: None))
