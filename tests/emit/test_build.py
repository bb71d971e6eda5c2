"""What DeepSpeed is given: specs that build segments, and the batch adapter."""

from __future__ import annotations

import pytest
import torch

from partitioner.capture import capture
from partitioner.emit import Placement, emit
from partitioner.emit.build import batch_adapter, layer_specs
from partitioner.errors import RuntimeGuardError
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment
from tests.captured import captured, two_stages
from tests.models import MODELS


def test_a_spec_builds_its_segment_around_the_users_modules():
    graph = captured("gpt2")
    placement = two_stages(graph, "transformer.h.1@0")
    block_of = {
        node: "block" for node, stage in placement.stage_of.items() if stage == 1
    }
    placement = Placement(stages=2, stage_of=placement.stage_of, block_of=block_of)
    first, second = [spec.build() for spec in layer_specs(emit(graph, placement))]
    assert type(first) is Segment
    assert type(second) is CheckpointedSegment
    block = graph.model.get_submodule("transformer.h.0")
    assert any(module is block for module in first.modules())


def test_the_adapter_splits_a_batch_for_both_ends():
    graph = captured("gpt2-labels")
    adapter = batch_adapter(graph, emit(graph, two_stages(graph, "transformer.h.1@0")))
    ids = torch.randint(0, 100, (3, 9))
    inputs, labels = adapter({"input_ids": ids, "labels": ids + 1})
    assert torch.equal(inputs, ids)  # type: ignore[arg-type]
    assert [torch.equal(tensor, ids + 1) for tensor in labels] == [True]


def test_sizes_that_were_equal_must_be_equal():
    graph = captured("bert")
    adapter = batch_adapter(
        graph, emit(graph, two_stages(graph, "bert.encoder.layer.0."))
    )
    ids = torch.ones(2, 16, dtype=torch.long)
    with pytest.raises(RuntimeGuardError, match="sizes differ"):
        adapter({"input_ids": ids, "attention_mask": ids[:, :8]})


def test_fixed_sizes_are_guarded():
    graph = captured("vit")
    cut = next(span.path for span in graph.spans if span.path.endswith("layers.0"))
    adapter = batch_adapter(graph, emit(graph, two_stages(graph, f"{cut}@0")))
    adapter({"pixel_values": torch.zeros(5, 3, 32, 32)})
    with pytest.raises(RuntimeGuardError, match="has shape"):
        adapter({"pixel_values": torch.zeros(5, 3, 16, 16)})


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_floating_inputs_are_cast_as_they_were_recorded(dtype: torch.dtype | None):
    graph = capture(MODELS["mlp"].model(), MODELS["mlp"].example(), dtype=dtype)
    adapter = batch_adapter(graph, emit(graph, two_stages(graph, "0@0")))
    wanted = dtype or torch.float32
    inputs, _ = adapter(torch.zeros(4, 8))
    assert inputs.dtype == wanted  # type: ignore[union-attr]
    assert graph.inputs[0].dtype == wanted


def test_a_bfloat16_model_keeps_the_float32_inputs_it_was_given():
    """It may cast them itself: what was recorded decides."""
    model = MODELS["mlp"].model().to(torch.bfloat16)

    class Casts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.to(torch.bfloat16))

    graph = capture(Casts(), MODELS["mlp"].example())
    adapter = batch_adapter(graph, emit(graph, two_stages(graph, "inner.0@0")))
    inputs, _ = adapter(torch.zeros(4, 8))
    assert inputs.dtype == torch.float32  # type: ignore[union-attr]
