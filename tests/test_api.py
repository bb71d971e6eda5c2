"""partition() refuses what it cannot do, and says what can be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partitioner import (
    DataDependentError,
    ExampleInputsError,
    ForwardError,
    MemoryLimitError,
    OptionError,
    TooManyStagesError,
    inspect_model,
    partition,
)
from tests.models import MODELS


def mlp() -> nn.Sequential:
    model = MODELS["mlp"].model()
    assert isinstance(model, nn.Sequential)
    return model


BATCH = torch.zeros(3, 8)


class Carrying(nn.Sequential):
    """A model in Lightning's manner."""

    example_input_array = BATCH


def test_no_example_inputs():
    with pytest.raises(ExampleInputsError) as caught:
        partition(mlp(), 2, device="cpu")

    assert "example_input_array" in caught.value.message
    assert "example_inputs=" in caught.value.hint


def test_example_inputs_that_the_model_carries_are_used():
    plan = partition(Carrying(*mlp()), 2, device="cpu")
    assert plan.graph.inputs[0].shape == (3, 8)
    assert any("example_input_array" in text for text in plan.graph.assumptions)

    plan = partition(MODELS["t5"].model(), 2, device="cpu")
    assert any("dummy_inputs" in text for text in plan.graph.assumptions)


def test_inputs_of_the_wrong_shape_chain_the_original_error():
    with pytest.raises(ForwardError) as caught:
        partition(mlp(), 2, example_inputs=torch.zeros(3, 7), device="cpu")

    assert "float32[3, 7]" in caught.value.message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_inputs_that_do_not_fit_the_signature():
    with pytest.raises(ExampleInputsError, match="forward"):
        partition(mlp(), 2, example_inputs={"nonsense": BATCH}, device="cpu")


@pytest.mark.parametrize("stages", [0, -1])
def test_stages_below_one(stages):
    with pytest.raises(OptionError, match="stages"):
        partition(mlp(), stages, example_inputs=BATCH, device="cpu")


def test_too_many_stages_name_the_largest_possible():
    with pytest.raises(TooManyStagesError) as caught:
        partition(mlp(), 9, example_inputs=BATCH, device="cpu")

    largest = caught.value.largest
    assert str(largest) in str(caught.value)
    assert len(
        partition(mlp(), largest, example_inputs=BATCH, device="cpu").stages
    ) == (largest)
    with pytest.raises(TooManyStagesError):
        partition(mlp(), largest + 1, example_inputs=BATCH, device="cpu")


def test_what_is_frozen_is_cut_as_what_trains_but_something_must_train():
    model = mlp()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(TooManyStagesError, match="no parameter that requires grad"):
        partition(model, 2, example_inputs=BATCH, device="cpu")

    list(model.parameters())[-1].requires_grad_(True)
    plan = partition(model, 2, example_inputs=BATCH, device="cpu")
    assert len(plan.stages) == 2


def test_a_memory_limit_that_is_too_small_names_stage_and_size():
    entry = MODELS["gpt2"]
    with pytest.raises(MemoryLimitError) as caught:
        partition(
            entry.model(),
            2,
            example_inputs=entry.example(),
            device="cpu",
            memory_limit=100_000,
        )

    error = caught.value
    assert f"stage {error.stage}" in error.message
    assert error.needed_bytes > error.limit_bytes == 100_000
    assert "fit" in error.hint
    plan = partition(
        entry.model(),
        2,
        example_inputs=entry.example(),
        device="cpu",
        memory_limit=error.needed_bytes,
    )
    assert max(stage.memory_bytes for stage in plan.stages) <= error.needed_bytes


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        if x.sum() > 0:
            return self.layer(x)
        return x


def test_control_flow_on_values_at_the_root_names_the_line():
    with pytest.raises(DataDependentError) as caught:
        partition(Branching(), 2, example_inputs=BATCH, device="cpu")

    line = Branching.forward.__code__.co_firstlineno + 1
    assert caught.value.source.endswith(f"test_api.py:{line}")
    assert f"test_api.py:{line}" in caught.value.message
    assert "Branching" in caught.value.message


def test_a_class_instead_of_a_module():
    with pytest.raises(OptionError, match="Module"):
        partition(nn.Linear, 2, example_inputs=BATCH)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["a900", "cuda"])
def test_a_device_that_is_not_there(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(OptionError, match=device):
        partition(mlp(), 2, example_inputs=BATCH, device=device)


@pytest.mark.parametrize("dtype", ["float8", "int32", torch.int64])
def test_a_dtype_that_is_none(dtype):
    with pytest.raises(OptionError, match="dtype"):
        partition(mlp(), 2, example_inputs=BATCH, dtype=dtype)


def test_one_stage_is_the_whole_model():
    plan = partition(mlp(), 1, example_inputs=BATCH, device="cpu")
    assert plan.stages[0].sent_bytes == 0
    assert plan.gap == pytest.approx(0.0, abs=1e-6)
    assert plan.verify().ok


def test_the_report_alone():
    report = inspect_model(mlp(), 2, example_inputs=BATCH, device="h100")
    assert report.startswith("Sequential: 2 stages, 8 micro-batches")


def chosen(stages: int = 2, **options: Any) -> str:
    plan = partition(mlp(), stages, schedule="auto", **(LARGE | options))
    return plan.options.schedule


LARGE: dict[str, Any] = {
    "example_inputs": torch.zeros(4096, 8),  # activations take most of the memory
    "device": "h100",
    "micro_batches": 12,
    "checkpointing": "none",
}
SLOW = {"devices_per_node": 1, "between_nodes": "ethernet-10"}


def test_auto_runs_ahead_where_messages_are_slow():
    options = LARGE | {"cluster": SLOW}
    plain = partition(mlp(), 2, **options)
    ahead = partition(mlp(), 2, schedule="eager-1f1b", **options)
    assert ahead.simulation.step_s < 0.9 * plain.simulation.step_s
    assert chosen(cluster=SLOW) == "eager-1f1b"


def test_auto_stays_where_nothing_is_won_or_memory_is_short():
    assert chosen(stages=1) == "1f1b"
    options = LARGE | {"cluster": SLOW}
    plain = partition(mlp(), 2, **options)
    fits = max(rank.memory_bytes for rank in plain.score.ranks)
    with pytest.raises(MemoryLimitError):
        partition(mlp(), 2, schedule="eager-1f1b", memory_limit=fits, **options)
    assert chosen(cluster=SLOW, memory_limit=fits) == "1f1b"


@pytest.mark.parametrize(("device", "least"), [("cpu", 0.005), ("h100", 0.02)])
def test_auto_wants_more_of_a_gpu(device: str, least: float):
    """There the receive that waits is a kernel, and takes from those that compute."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
        inputs = torch.zeros(4096, 1024)
    options = LARGE | {"example_inputs": inputs, "device": device}
    plain, ahead, auto = (
        partition(model, 2, schedule=schedule, **options)
        for schedule in ("1f1b", "eager-1f1b", "auto")
    )
    saved = 1 - ahead.simulation.step_s / plain.simulation.step_s
    assert least < saved < 0.06
    assert auto.options.schedule == ("eager-1f1b" if device == "cpu" else "1f1b")
    told = "receives that wait" in ahead.to_dict()["provenance"]["prices"]
    assert told == (device == "h100")
