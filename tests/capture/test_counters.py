"""Python numbers that a forward changes, and what is no such number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.counters import Counters
from partitioner.errors import DataDependentError
from partitioner.graph import ModelGraph
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded, two_stages


class Counts(toys.Toy):
    steps = 0
    """On the class: objects have their own only after the first forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.n = 1
        self.seen = [1.0]
        self.table = {"n": 1}
        self.flag = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        getattr(self, self.how)()
        scale = self.n + len(self.seen) + self.table["n"] + self.flag + self.steps
        return self.second(h * scale)

    def number(self) -> None:
        self.n += 1

    def a_list(self) -> None:
        self.seen.append(2.0)

    def a_dict(self) -> None:
        self.table["n"] += 1

    def a_flag(self) -> None:
        self.flag = True

    def class_number(self) -> None:
        self.steps += 1

    def mode(self) -> None:
        self.second.eval()


HOWS = {
    "number": "n", "a_list": "seen", "a_dict": "table", "a_flag": "flag",
    "class_number": "steps", "mode": "second.training",
}  # fmt: skip


def whole(graph: ModelGraph, path: str) -> str:
    (note,) = [text for text in graph.assumptions if "runs as a whole" in text]
    assert note.startswith(f"{path} runs as a whole: ")
    tensors = input_tensors(graph, None)
    for cut in ("before", "inner"):
        assert verify(graph, two_stages(graph, cut), tensors).ok
    return note


@pytest.mark.parametrize("how", HOWS)
def test_a_module_that_changes_a_plain_attribute_runs_as_a_whole(how: str):
    model = seeded(toys.Inside(Counts(how)))
    assert f"it changes inner.{HOWS[how]}," in whole(capture(model, BATCH), "inner")


@pytest.mark.parametrize("how", sorted(HOWS.keys() - {"a_flag"}))
def test_a_root_that_does_something_by_a_changed_attribute_is_refused(how: str):
    with pytest.raises(DataDependentError, match=HOWS[how]) as caught:
        capture(Counts(how), BATCH)
    assert "registered buffer" in caught.value.hint


def test_a_root_that_sets_a_flag_before_it_reads_it_does_the_same_each_time():
    graph = capture(seeded(Counts("a_flag")), BATCH)
    assert any("the root changes flag" in note for note in graph.assumptions)
    assert all(verification.ok for verification in cut_everywhere(graph))


def test_who_counts_for_another_module_runs_as_a_whole():
    class Reads(nn.Module):
        n = 0

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) * self.n

    class CountsFor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = Reads()

        def forward(self, x: Tensor) -> Tensor:
            y = self.reader(x)
            self.reader.n += 1
            return y + self.reader(x)

    graph = capture(seeded(toys.Inside(CountsFor())), BATCH)
    notes = [text for text in graph.assumptions if "runs as a whole" in text]
    assert any(note.startswith("inner runs as a whole") for note in notes)
    assert [node for node in graph.graph.nodes if node.target == "inner"]


def test_a_leaf_that_counts_is_no_matter_of_its_callers():
    graph = capture(seeded(toys.Inside(toys.Inside(Counts("number")))), BATCH)
    (note,) = [text for text in graph.assumptions if "runs as a whole" in text]
    assert note.startswith("inner.inner runs as a whole")
    assert [span.path for span in graph.spans] == ["inner"]


class Keeps(toys.Toy):
    """Sets attributes as libraries do: what it computed first, tensors, no change."""

    def __init__(self) -> None:
        super().__init__()
        self.length: int | None = None
        self.last: Any = None
        self.log: list[Any] = []
        self.cache: dict[str, Tensor] = {}
        self.same = float("nan")

    def forward(self, x: Tensor) -> Tensor:
        self.length = x.shape[1]
        self.last = self.first(x)
        self.log.append(self.last)
        self.cache["last"] = self.last
        self.same = float("nan")
        return self.second(self.last)


def test_what_libraries_keep_is_recorded_through():
    graph = capture(seeded(toys.Inside(Keeps())), BATCH)
    assert [span.path for span in graph.spans] == ["inner"]
    assert not any("runs as a whole" in note for note in graph.assumptions)


def test_types_count_and_places_do_not():
    model = nn.Module()
    model.ratio, model.names = 1, ["a"]  # type: ignore[assignment]
    counters = Counters(model)
    model.names = ["a"]  # type: ignore[assignment]
    assert counters.changed(model) == []
    model.ratio = True  # type: ignore[assignment]
    assert counters.changed(model) == ["ratio"]
    counters.accept(model)
    assert counters.changed(model) == []


class Logs(toys.Toy):
    """Counts its forwards for whoever looks at the counter."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.n, self.seen = 5, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        self.seen.append(self.n)
        h = self.first(x)
        if self.how == "argument":
            h = h * self.n
        if self.how == "branch" and self.n % 2:
            h = torch.tanh(h)
        if self.how == "eval branch" and not self.training and self.n % 2:
            h = torch.tanh(h)
        if self.how == "output":
            return (self.second(h), self.n)  # type: ignore[return-value]
        return self.second(h)


def test_a_counter_of_the_root_that_is_only_logged_is_a_note():
    model = seeded(Logs("log"))
    graph = capture(model, BATCH)
    assert (model.n, model.seen) == (5, [0])  # type: ignore[comparison-overlap]
    (note,) = [text for text in graph.assumptions if "does nothing else" in text]
    assert note.startswith("the root changes n, seen in its forward")
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


@pytest.mark.parametrize("how", ["argument", "branch", "eval branch", "output"])
def test_a_counter_of_the_root_that_does_something_is_refused(how: str):
    with pytest.raises(DataDependentError, match="it changes n, seen, which its next"):
        capture(Logs(how), BATCH)


def test_a_counter_that_the_root_keeps_for_a_submodule_is_refused():
    class Scales(nn.Linear):
        scale = 1

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    class Parent(toys.Toy):
        first: Scales

        def __init__(self) -> None:
            super().__init__()
            self.first = Scales(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.second(self.first(x))
            self.first.scale += 1
            return h

    with pytest.raises(DataDependentError, match=r"it changes first\.scale"):
        capture(Parent(), BATCH, leaf=["first"])
