"""DeepSpeed moves parameters into one tensor: there weights begin at aligned places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner import partition
from partitioner.runtime.parameter_order import ALIGNED
from tests.distributed.launch import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

WIDTH, CLASSES = 128, 5


class Classifier(nn.Module):
    """Its last bias has an odd number of elements, and comes before the layers."""

    example_input_array = torch.zeros(3, WIDTH, dtype=torch.bfloat16)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.encoder = nn.ModuleDict(
            {"layers": nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))}
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder["layers"](x))
        return found


def misplaced(*, groups: bool) -> list[str]:
    """Return the weights of this rank's stage that begin at unaligned places."""
    plan = partition(Classifier().bfloat16(), 2, micro_batches=4, device="h100")
    rules = [{"params": "*.weight", "weight_decay": 0.1}] if groups else []
    engine, *_ = plan.initialize(
        F.cross_entropy, config={"steps_per_print": 10**9}, groups=rules
    )
    found = dict(engine.module.original_named_parameters())
    begins = {weight.untyped_storage().data_ptr() for weight in found.values()}
    assert len(begins) < len(found)  # they are in few tensors
    nbytes = ALIGNED * torch.bfloat16.itemsize
    names = [
        name
        for name, weight in found.items()
        if weight.numel() % ALIGNED == 0
        and weight.storage_offset() * weight.itemsize % nbytes
    ]
    engine.destroy()
    return names


def both() -> list[list[str]]:
    return [misplaced(groups=groups) for groups in (False, True)]


def test_weights_are_aligned_behind_an_odd_bias():
    for found in launch(2, both, timeout_s=250.0):
        assert found == [[], []]
