"""A module whole in one segment is the user's own module; a cut one is opened."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.emit import Layers, emit
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from tests.capture import toys
from tests.captured import BATCH, captured, cut_everywhere, seeded, two_stages


def called(graph: ModelGraph, cut: str) -> list[dict[str, nn.Module]]:
    """The user's modules that each of two stages calls."""
    layers = emit(graph, two_stages(graph, cut))
    return [dict(layer.body.modules) for layer in layers.layers]


def test_whole_modules_are_the_users_own_objects():
    graph = captured("gpt2")
    first, second = called(graph, "transformer.h.1@0")
    blocks = [graph.model.get_submodule(f"transformer.h.{i}") for i in range(4)]
    assert first["transformer.h.0"] is blocks[0]
    assert first["transformer.h.1"] is blocks[1]
    assert second["transformer.h.2"] is blocks[2]
    assert second["transformer.h.3"] is blocks[3]
    assert not any(path.startswith("transformer.h.0.") for path in first)


def test_a_module_that_a_cut_goes_through_is_opened():
    graph = captured("gpt2")
    first, second = called(graph, "transformer.h.1.attn@0:2")
    assert "transformer.h.0" in first
    assert "transformer.h.1.attn.c_attn" in first
    assert "transformer.h.1.attn.c_proj" in second
    assert "transformer.h.1.mlp" in second  # whole again after the cut
    assert not {"transformer.h.1", "transformer.h.1.attn"} & {*first, *second}


def test_the_outermost_whole_module_is_called():
    first, second = called(captured("t5"), "encoder.final_layer_norm")
    assert "encoder.block.0" in first
    assert "decoder" in second
    assert not any(path.startswith("decoder.") for path in second)
    assert not any(path.startswith("encoder.block.0.") for path in first)


def test_modules_called_with_library_objects_are_opened():
    """Replaying a recorded cache would grow it at every step."""

    class Cache:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def update(self, x: Tensor) -> Tensor:
            self.seen.append(x)
            return torch.cat(self.seen)

    class Layer(toys.Toy):
        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            return self.second(cache.update(self.first(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.layer = nn.Linear(6, 6), Layer()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.before(x), Cache())

    graph = capture(seeded(Model()), BATCH)
    (span,) = graph.spans
    assert span.opened_because == "an argument of type Cache"
    _, second = called(graph, "before")
    assert set(second) == {"layer.first", "layer.second"}
    for verification in cut_everywhere(graph):
        assert verification.ok, verification
        assert verification.ok  # and again: nothing has grown


def test_values_that_leave_by_the_side_open_the_module():
    class Router(toys.Toy):
        aux: Any = None

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            self.aux = h.mean()
            return self.second(h)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = Router(), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.head(self.router(x))
            return y, self.router.aux * 2

    graph = capture(seeded(Model()), BATCH)
    first, _ = called(graph, "router")
    assert "router" not in first
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_values_that_enter_by_the_side_open_the_module():
    class Reader(toys.Toy):
        extra: Any = None

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) + self.extra)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.reader = nn.Linear(6, 6), Reader()

        def forward(self, x: Tensor) -> Tensor:
            h = self.before(x)
            self.reader.extra = h * 2
            return self.reader(h)

    graph = capture(seeded(Model()), BATCH)
    _, second = called(graph, "@0:0")
    assert "reader" not in second
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_a_shared_module_is_whole_on_both_stages():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.between = toys.Inside(nn.Tanh()), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.between(self.inner(x)))

    graph = capture(seeded(Model()), BATCH)
    layers = emit(graph, two_stages(graph, "between"))
    inner = graph.model.get_submodule("inner")
    assert all(layer.body.modules["inner"] is inner for layer in layers.layers)
    tied = {tie.name for tie in layers.ties}
    assert tied == {
        name for name, _ in graph.model.named_parameters() if "inner" in name
    }


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, scratch: Tensor) -> Tensor:
        scratch.mul_(0.5)
        return self.linear(x) * scratch


class Ignores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, scratch: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


def test_an_argument_that_nobody_reads_is_a_value_like_others():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halves, self.ignores = Halves(), Ignores()
            self.last = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            scratch = x * 2
            x = self.ignores(self.halves(x, scratch), scratch)
            return self.last(x)

    graph = capture(seeded(Model()), BATCH)
    assert verify(graph, two_stages(graph, "ignores@0"), [BATCH]).ok


def test_the_loss_part_is_never_inside_a_whole_module():
    graph = captured("gpt2-labels")
    layers = emit(graph, two_stages(graph, "transformer.h.1@0"))
    assert layers.head is not None
    late = [node for node in graph.graph.nodes if info(node).kind == "late"]
    written = [str(n.target) for n in layers.head.graph.nodes]
    assert {str(node.target) for node in late} <= set(written)
    assert not any("cross_entropy" in target for target in _targets(layers))
    assert not layers.head.modules


def _targets(layers: Layers) -> list[str]:
    return [
        str(node.target) for layer in layers.layers for node in layer.body.graph.nodes
    ]
