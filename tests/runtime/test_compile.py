"""Segments under torch.compile: what is compiled, and that it computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.errors import OptionError
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.compile_options import compile_options
from partitioner.runtime.segment import Segment, SegmentBody
from partitioner.runtime.wire import WireSpec
from partitioner.runtime.wire_value import WireValue

WIDTH = 8


class Counting:
    """A backend that runs graphs as they are and counts them and their runs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0

    def __call__(self, module: fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return module.forward(*arguments)

        return run


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        return x + 1


def segment(
    kind: type[Segment], modules: dict[str, nn.Module], **fields: Any
) -> Segment:
    graph = fx.Graph()
    value = graph.placeholder("value")
    for path in modules:
        value = graph.call_module(path, (value,))
    graph.output((value,))
    body = SegmentBody(name="compiled", graph=graph, modules=modules)
    return kind(body, is_first=True, **fields)


def wire(rows: int) -> WireSpec:
    value = WireValue(
        name="value",
        kind="tensor",
        dtype=torch.float32,
        shape=(rows, WIDTH),
        differentiable=True,
    )
    return WireSpec((value,))


def test_the_body_is_one_graph_and_packing_is_outside():
    linear = nn.Linear(WIDTH, WIDTH)
    made = segment(Segment, {"linear": linear}, send=wire(3))
    x = torch.randn(3, WIDTH)
    expected = made(x)
    backend = Counting()
    made.compile(backend=backend)
    for found, plain in zip(made(x), expected, strict=True):
        assert torch.equal(found, plain)
    made(x)
    assert (backend.graphs, backend.runs) == (1, 2)


def test_a_graph_break_is_no_error():
    made = segment(Segment, {"broken": Broken(), "tail": nn.Linear(WIDTH, WIDTH)})
    x = torch.randn(3, WIDTH)
    expected = made(x)[1]
    backend = Counting()
    made.compile(backend=backend)
    assert torch.equal(made(x)[1], expected)
    assert backend.graphs > 1


def test_the_mode_and_another_shape_are_seen():
    made = segment(Segment, {"dropout": nn.Dropout(0.5)})
    made.compile(backend=Counting())
    x = torch.ones(50, WIDTH)
    assert 0 < (made(x)[1] == 0).sum() < x.numel()
    made.eval()
    assert torch.equal(made(x)[1], x)
    assert torch.equal(made(x[:7])[1], x[:7])


def trained(kind: type[Segment]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, WIDTH)
    made = segment(kind, {"linear": linear, "dropout": nn.Dropout(0.5)})
    made.compile(backend="aot_eager")
    output = made(torch.ones(4, WIDTH))[1]
    torch.rand(3)  # others draw between forward and backward
    output.square().sum().backward()
    assert linear.weight.grad is not None
    return output.detach(), linear.weight.grad


def test_recomputation_draws_the_same_numbers_from_compiled_code():
    (output, gradient), (again, regained) = map(trained, (Segment, CheckpointedSegment))
    assert torch.equal(output, again)
    assert torch.equal(gradient, regained)


def test_recomputation_runs_the_compiled_code():
    made = segment(CheckpointedSegment, {"linear": nn.Linear(WIDTH, WIDTH)})
    backend = Counting()
    made.compile(backend=backend)
    made(torch.ones(4, WIDTH))[1].sum().backward()
    assert (backend.graphs, backend.runs) == (1, 2)


def test_options_are_torch_compiles():
    assert compile_options(False) is None
    assert compile_options(True) == {}
    given = {"backend": "aot_eager", "dynamic": True}
    assert compile_options(given) == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("inductor", "compile is 'inductor'"),
        ({"backed": "inductor"}, "has no backed"),
        ({"mode": "reduce-overhead"}, "CUDA graphs"),
        ({"mode": "max-autotune"}, "CUDA graphs"),
        ({"options": {"triton.cudagraphs": True}}, "CUDA graphs"),
    ],
)
def test_options_that_cannot_be_are_refused(given: Any, message: str):
    with pytest.raises(OptionError, match=message) as caught:
        compile_options(given)
    assert caught.value.hint
