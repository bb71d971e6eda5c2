"""Grouped products are recorded in every dtype that kernels take, not bfloat16 only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from partitioner.capture import capture
from partitioner.capture.grouped import GroupedFakes
from partitioner.cost import price, resolve
from tests.captured import cut_everywhere, rerun, seeded

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products"
)


def _offsets(x: Tensor) -> Tensor:
    return torch.tensor([2, 5, 8], dtype=torch.int32, device=x.device)


class Experts(nn.Module):
    """A third of the rows for each expert."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, 12) / 3)
        self.down = nn.Parameter(torch.randn(3, 12, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch._grouped_mm(x, self.up, offs=_offsets(x))
        return torch._grouped_mm(h.relu(), self.down, offs=_offsets(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.experts = Experts()
        self.after = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.experts(self.before(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [8, 6])
@pytest.mark.parametrize(
    ("left", "right"),
    [("rows", "groups"), ("groups", "columns"), ("rows", "columns"), ("groups",) * 2],
)
def test_fakes_look_like_what_the_kernel_makes(dtype, columns, left, right):
    shapes = {"rows": (8, 8), "columns": (8, 8), "groups": (3, 8, 8)}
    a = torch.randn(shapes[left]).to(dtype)
    b = torch.randn(*shapes[right][:-2], 8, 8).to(dtype)
    if right == "groups":
        b = b.transpose(-1, -2)[..., :columns]
    if (left, right) == ("rows", "columns"):
        a = a.T
    offsets = None if left == right else _offsets(a)
    expected = torch._grouped_mm(a, b, offs=offsets)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, GroupedFakes():
        fakes = mode.from_tensor(a), mode.from_tensor(b)
        found = torch._grouped_mm(*fakes, offs=offsets)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype


def test_faults_of_the_user_are_torchs_to_tell():
    with FakeTensorMode(), GroupedFakes(), pytest.raises(RuntimeError):
        torch._grouped_mm(torch.zeros(8, 8), torch.zeros(3, 4, 8), offs=None)


def test_experts_are_recorded_through_in_float32():
    graph = capture(seeded(Model()), torch.randn(8, 8))
    assert "runs as a whole" not in "\n".join(graph.assumptions)
    assert sum(node.target is torch._grouped_mm for node in graph.graph.nodes) == 2
    for verification in cut_everywhere(graph):
        assert verification.ok, verification


def test_the_recorded_experts_compute_what_the_model_computes():
    model, x = seeded(Model()), torch.randn(8, 8)
    assert torch.equal(rerun(capture(model, x), model, [x]), model(x))


def test_grouped_products_are_priced_in_float32():
    costed = price(capture(Model(), torch.randn(8, 8)), profile=resolve("cpu"))
    linear, expert = 2 * 8 * 8 * 8, 2 * 8 * 8 * 12
    assert costed.total.forward_flops == 2 * linear + 2 * expert
    # The input wants no gradient: all but the first layer pay for both operands.
    assert costed.total.backward_flops == 3 * linear + 4 * expert
    assert not costed.unpriced
