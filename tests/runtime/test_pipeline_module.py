"""What contradicts the plan is refused before any process group is needed."""

from __future__ import annotations

from typing import Any

import deepspeed
import pytest
import torch
from deepspeed.accelerator import get_accelerator

from partitioner.errors import EmitError, OptionError, RuntimeGuardError
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead
from partitioner.runtime.pipeline_module import PartitionedPipelineModule
from partitioner.runtime.pipeline_options import check_precision


def build(layers: int = 3, parts: tuple[int, ...] = (0, 1, 3), **options: Any) -> Any:
    loss = LossHead(lambda output, labels: output, None, tuple, LabelsLayout())
    return PartitionedPipelineModule(
        [None] * layers, parts=parts, loss_head=loss, **options
    )


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("parts", [(0,), (0, 3, 3), (1, 3), (0, 2), (0, 2, 1, 3)])
def test_parts_must_cut_the_segments(parts):
    with pytest.raises(EmitError, match="do not cut 3 segments"):
        build(parts=parts)


def test_options_that_the_plan_decides_are_refused():
    with pytest.raises(OptionError, match="loss_fn, num_stages: decided by the plan"):
        build(num_stages=2, loss_fn=None)


def test_an_old_deepspeed_is_refused(monkeypatch):
    monkeypatch.setattr(deepspeed, "__version__", "0.19.2+unknown")
    with pytest.raises(RuntimeGuardError, match=r"0\.19\.2.*0\.19\.3 is the first"):
        build()


def test_without_a_launcher_the_missing_variables_are_named():
    with pytest.raises(
        RuntimeGuardError, match=r"LOCAL_RANK, RANK, WORLD_SIZE.* not set"
    ):
        build()


def test_a_precision_that_the_device_lacks_is_refused():
    check_precision(torch.float32)
    check_precision(torch.bfloat16)
    if get_accelerator().is_fp16_supported():
        check_precision(torch.float16)
        return
    with pytest.raises(RuntimeGuardError, match=r"torch\.float16.*this cpu") as caught:
        check_precision(torch.float16)
    assert "bfloat16" in caught.value.hint
