"""Every function that a tensor's operators stand for has a name in generated code."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.functions import as_target, function_name
from partitioner.emit import Placement
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, rerun, seeded

Operation = Callable[[Tensor], Any]

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
BITWISE = ("and_", "or_", "xor", "lshift", "rshift")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow")
FLOATS = (*ARITHMETIC, *IN_PLACE, *COMPARISONS)
WITHOUT_DERIVATIVE = ("floordiv", "ifloordiv", "mod")
BITWISE_IN_PLACE = ("iand", "ior", "ixor", "ilshift", "irshift")


def of_floats(name: str, *, reflected: bool = False) -> Operation:
    """Apply an operator to a positive tensor and a number, which leads if reflected."""
    function = getattr(operator, name)

    def apply(h: Tensor) -> Any:
        positive = h.abs() + 1
        if name in WITHOUT_DERIVATIVE:
            positive = positive.detach()
        return function(2.5, positive) if reflected else function(positive, 2.5)

    return lambda h: apply(h) * h


def of_integers(name: str, *, reflected: bool = False) -> Operation:
    function = getattr(operator, name)
    if reflected:
        return lambda h: function(2, (h > 0).long()) * h
    return lambda h: function((h > 0).long(), 2) * h


def set_item(h: Tensor) -> Tensor:
    copy = h * 1
    copy[:, 0] = 3.0
    copy[h > 1] = 0.5
    copy[1:, [1, 2]] *= 2
    return copy


OPERATIONS: dict[str, Operation] = {
    **{name: of_floats(name) for name in FLOATS},
    **{f"r{name}": of_floats(name, reflected=True) for name in ARITHMETIC},
    **{name: of_integers(name) for name in (*BITWISE, *BITWISE_IN_PLACE)},
    **{f"r{name}": of_integers(name, reflected=True) for name in BITWISE},
    "pow of tensors": lambda h: h.abs() ** h,
    "ipow method": lambda h: (h * 1).__ipow__(2),
    "idiv method": lambda h: (h * 1).__itruediv__(2),
    "rdiv method": lambda h: (h.abs() + 1).__rdiv__(2),
    "rpow method": lambda h: h.__rpow__(2),
    "matmul": lambda h: h @ h.T @ h,
    "rmatmul": lambda h: h.__rmatmul__(torch.ones(4, 4)),
    "imatmul": lambda h: operator.imatmul(h, torch.ones(6, 6)),
    "getitem": lambda h: h[None, :, ::2].repeat(1, 1, 2)[0] + h[:, [0, 1, 2, 3, 4, 5]],
    "setitem": set_item,
    "invert": lambda h: h * ~(h > 0),
    "abs": abs,
    "neg": lambda h: -h,
    "pos": lambda h: +h,
    "reversed": lambda h: torch.stack(list(reversed(h))),
    "iter": lambda h: torch.stack([row * 2 for row in h]),
    "transposes": lambda h: h.T.mT.T.mT,
    "norm": lambda h: h / h.norm(dim=1, keepdim=True),
    "split": lambda h: torch.cat(h.split([2, 4], 1)[::-1], 1),
    "einsum": lambda h: torch.einsum("bi,bj->bj", h, h),
    "new_tensor": lambda h: h + h.new_tensor([1.0, 2, 3, 4, 5, 6]),
    "unique": lambda h: h + torch.unique(torch.tensor([1, 1, 2])).sum(),
}


class Applies(toys.Toy):
    """Applies one operation between two layers."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.operation(self.first(x)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operator_runs_node_by_node(name: str):
    model = seeded(nn.Sequential(nn.Linear(6, 6), Applies(OPERATIONS[name])))
    graph = capture(model, BATCH)
    assert not [note for note in graph.assumptions if "runs as a whole" in note]
    torch.testing.assert_close(rerun(graph, model, [BATCH]), model(BATCH))
    halves = two_halves(graph)
    verification = verify(graph, halves, input_tensors(graph, None))
    assert verification.ok, verification


def two_halves(graph: ModelGraph) -> Placement:
    """Cut between the last operation and the layer that reads it: all else is open."""
    nodes = [node for node in graph.graph.nodes if info(node).kind == "compute"]
    stage_of = {node: int(node is nodes[-1]) for node in nodes}
    return Placement(stages=2, stage_of=stage_of, block_of={})


def test_every_wrapped_method_is_called_as_a_method():
    methods = {
        name: method
        for name in dir(Tensor)
        if isinstance(method := getattr(Tensor, name), FunctionType)
    }
    assert "__pow__" in methods
    for method in methods.values():
        kind, target, _ = as_target(method, function_name(method), ())
        assert kind == "method"
        assert getattr(Tensor, target) is method


def test_a_function_that_its_module_does_not_have_is_wrapped():
    def hidden(x: Tensor) -> Tensor:
        return x + 1

    hidden.__module__ = "torch.functional"
    kind, target, _ = as_target(hidden, "hidden", ())
    assert kind == "function"
    assert target is not hidden
    assert target.__name__ == "hidden"
    assert torch.equal(target(BATCH), BATCH + 1)
    assert as_target(torch.functional.einsum, "einsum", ())[1] is torch.einsum
