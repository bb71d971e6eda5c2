"""A loss of the engine's costs what it would inside the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner import CostError, OptionError, Plan, measure_model, partition

WORDS, WIDTH = 40_000, 64
IDS = torch.arange(2048).reshape(4, 512)
LABELS = IDS % 7
FEW = 2
"""Positions of a micro-batch that runs for real."""


class Model(nn.Module):
    def __init__(self, words: int = WORDS, width: int = WIDTH, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        h = self.words(ids)
        for layer in self.layers:
            h = layer(h).tanh()
        return {"logits": self.head(h), "hidden": h}


def loss_of(output: Any, labels: Tensor) -> Tensor:
    logits = output["logits"].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class WithLoss(Model):
    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return loss_of(super().forward(ids), labels)


def planned(model: nn.Module | None = None, **options: Any) -> Plan:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "example_inputs": IDS,
        "device": "h100",
        "gap": 0.0,
    } | options
    return partition(model or Model(), 2, **given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_priced_as_if_the_model_computed_it(dtype: str):
    outside = planned(loss_fn=loss_of, example_labels=LABELS, dtype=dtype)
    inside = planned(WithLoss(), example_inputs=(IDS, LABELS), dtype=dtype)
    assert outside.objective_s == pytest.approx(inside.objective_s, rel=5e-3)
    mine, other = (plan.score.stages[-1] for plan in (outside, inside))
    assert mine.forward_s == pytest.approx(other.forward_s, rel=5e-3)
    assert mine.backward_s == pytest.approx(other.backward_s, rel=5e-3)
    loss = outside.costed.loss
    assert loss is not None
    logits_bytes = IDS.numel() * WORDS * 4
    assert loss.saved_bytes == pytest.approx(logits_bytes, rel=0.01)


def test_it_moves_the_cut_towards_the_head():
    with torch.device("meta"):
        model = Model(words=4000, width=1024, layers=24)
    plain = planned(model, dtype="bfloat16")
    priced = planned(model, dtype="bfloat16", loss_fn=loss_of, example_labels=LABELS)
    assert plain.costed.loss is None
    lasts = [plan.assignment.stage_of.count(1) for plan in (plain, priced)]
    assert lasts[1] < lasts[0]
    cost = priced.costed.loss
    assert cost is not None
    stage = priced.score.stages[-1]
    assert stage.forward_s > cost.forward_s > 0
    assert stage.backward_s > cost.backward_s > 0
    assert "loss " in str(priced)
    assert "loss " not in str(plain).replace("the loss", "")


def test_a_plan_file_keeps_it(tmp_path: Path):
    plan = planned(loss_fn=loss_of, example_labels=LABELS)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json", Model()).to_dict() == plan.to_dict()


def test_it_is_timed_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few: dict[str, Any] = {"example_inputs": IDS[:, :FEW], "loss_fn": loss_of}
    few |= {"example_labels": LABELS[:, :FEW]}
    timings = measure_model(Model(), device="cpu", **few)
    plan = planned(device=None, measurements=timings, **few)
    assert plan.costed.loss is not None
    assert plan.costed.loss.forward_s > 0
    assert any("_Computed" in name or "loss" in name for name in timings.blocks)


class Task:
    """Holds what no copy can be made of."""

    def __init__(self) -> None:
        self.library = torch

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        return loss_of(output, labels)


def test_a_method_of_any_object_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few: dict[str, Any] = {"example_inputs": IDS[:, :FEW], "loss_fn": Task().loss}
    few |= {"example_labels": LABELS[:, :FEW]}
    timings = measure_model(Model(), device="cpu", **few)
    assert not timings.failed
    assert any("_Computed" in name for name in timings.blocks)


def unlucky(output: Any, labels: Tensor) -> Tensor:
    """Runs on the recording's fakes alone."""
    hidden = output["hidden"]
    order = torch.arange(7, device=hidden.device) * hidden.shape[-1]
    return loss_of(output, labels) + hidden.index_select(-1, order).sum()


def test_a_plan_says_that_it_could_not_be_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few: dict[str, Any] = {"example_inputs": IDS[:, :FEW], "loss_fn": unlucky}
    few |= {"example_labels": LABELS[:, :FEW]}
    timings = measure_model(Model(), device="cpu", **few)
    plan = planned(device=None, measurements=timings, **few)
    assert "not timed: " in " ".join(str(plan).split())
    assert "_Computed (IndexError" in " ".join(str(plan).split())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: Any, labels: Tensor) -> Tensor:
        return self.scale * loss_of(output, labels)


def test_modules_and_labels_of_any_form():
    def of_dict(output: Any, labels: dict[str, Tensor]) -> Tensor:
        return loss_of(output, labels["labels"])

    plain = planned(loss_fn=loss_of, example_labels=LABELS)
    for function, labels in ((Scaled(), LABELS), (of_dict, {"labels": LABELS})):
        plan = planned(loss_fn=function, example_labels=labels)
        assert plan.objective_s == pytest.approx(plain.objective_s, rel=1e-2)


def test_half_a_loss_is_refused():
    with pytest.raises(OptionError, match="example_labels is missing"):
        planned(loss_fn=loss_of)
    with pytest.raises(OptionError, match="loss_fn is missing"):
        planned(example_labels=LABELS)
    with pytest.raises(OptionError, match="loss_fn is a int"):
        planned(loss_fn=3, example_labels=LABELS)


def test_a_loss_that_does_not_fit_the_output_says_so():
    def of_tensor(output: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten())

    with pytest.raises(CostError, match="the loss cannot be priced") as caught:
        planned(loss_fn=of_tensor, example_labels=LABELS)
    assert "leave loss_fn out" in caught.value.hint
