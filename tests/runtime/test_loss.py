"""The loss head gives DeepSpeed one scalar, whatever the model returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import Evaluation, LossHead
from partitioner.runtime.segment import SegmentBody


def sole(leaves: Any) -> Any:
    (leaf,) = leaves
    return leaf


def head(loss_fn: Any = None, rebuild: Any = sole, **fields: Any) -> LossHead:
    return LossHead(loss_fn, fields.get("body"), rebuild, LabelsLayout())


def token() -> Tensor:
    return torch.zeros((), requires_grad=True)


def test_loss_fn_gets_the_models_output_and_the_labels():
    value = torch.tensor([1.0, 3.0], requires_grad=True)
    target = torch.tensor([0.0, 1.0])
    start = token()
    loss = head(nn.functional.mse_loss)((start, value), target)
    assert torch.equal(loss, nn.functional.mse_loss(value, target))
    loss.backward()
    assert start.grad is not None
    assert start.grad.item() == 0.0


def test_the_output_is_rebuilt_before_the_loss_sees_it():
    def loss_fn(output: Any, target: Tensor) -> Tensor:
        result: Tensor = (output["a"] - output["b"][0] - target).sum()
        return result

    values = [torch.ones(1, requires_grad=True), torch.zeros(1)]
    made = head(loss_fn, lambda leaves: {"a": leaves[0], "b": (leaves[1],)})
    assert made((token(), *values), torch.full((1,), 5.0)).item() == -4.0


@dataclass
class Output:
    loss: Any
    logits: Any = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: loss,
        lambda loss: loss.reshape(1),
        lambda loss: {"loss": loss},
        lambda loss: Output(loss=loss),
    ],
)
def test_without_loss_fn_the_models_own_loss_counts(wrap):
    value = torch.tensor(2.0, requires_grad=True)
    loss = head(rebuild=lambda leaves: wrap(leaves[0]))((token(), value), ())
    assert loss.shape == ()
    assert loss.item() == 2.0


def test_the_dtype_of_the_loss_stays():
    value = torch.tensor(2.0, requires_grad=True, dtype=torch.bfloat16)
    assert head()((token(), value), ()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (lambda value: value.expand(2, 3), r"a tensor of shape \(2, 3\)"),
        (lambda value: {"logits": value}, "no loss"),
        (lambda value: Output(loss=None), "no loss"),
        (lambda value: (value, value), "a tuple"),
    ],
)
def test_a_model_without_a_scalar_loss_is_told_to_pass_one(output, found):
    value = torch.ones((), requires_grad=True)
    made = head(rebuild=lambda leaves: output(leaves[0]))
    with pytest.raises(
        RuntimeGuardError, match=f"the model returned {found}"
    ) as caught:
        made((token(), value), ())
    assert "pass loss_fn=" in str(caught.value)


def test_a_loss_fn_that_returns_no_scalar_is_named():
    with pytest.raises(RuntimeGuardError, match="loss_fn returned a float"):
        head(lambda *_: 1.0)((token(), torch.ones(1)), ())


def test_a_loss_that_trains_nothing_is_refused_in_training_only():
    made = head(lambda output, _: output.sum().detach())
    value = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeGuardError, match="does not depend on any parameter"):
        made((token(), value), ())
    with torch.no_grad():
        assert made((token(), value), ()).item() == 1.0


def late_body(module: nn.Module) -> SegmentBody:
    graph = fx.Graph()
    logits, labels = graph.placeholder("logits"), graph.placeholder("labels")
    graph.output((graph.call_module("criterion", (logits, labels)), logits))
    return SegmentBody(name="late", graph=graph, modules={"criterion": module})


def test_late_inputs_reach_the_part_that_needs_them():
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    layout = LabelsLayout(late=1)
    layout.flatten(None)
    made = LossHead(
        None,
        late_body(criterion),
        lambda leaves: {"loss": leaves[0], "logits": leaves[1]},
        layout,
    )
    logits = torch.randn(3, 2, requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    loss = made((token(), logits), (labels,))
    assert torch.equal(loss, criterion(logits, labels))


def test_modes_and_devices_reach_the_loss():
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(1))

    loss_fn, tail = Loss(), nn.Dropout()
    made = LossHead(loss_fn, late_body(tail), sole, LabelsLayout())
    made.train(False).to("meta")
    assert not loss_fn.training
    assert not tail.training
    assert loss_fn.weight.device.type == "meta"
    assert made.train() is made
    assert tail.training


def test_a_list_of_outputs_is_emptied_and_a_tuple_is_not():
    value = torch.ones(3, requires_grad=True)
    made = head(lambda output, _: output.sum())
    given: list[Any] = [token(), value]
    assert made(given, ()).item() == 3.0
    assert given == []
    assert made((token(), value), ()).item() == 3.0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: (loss, {"router": loss * 2}),
        lambda loss: {"loss": loss, "router": loss * 2},
    ],
)
def test_further_losses_are_reported_and_not_trained_by(wrap):
    value = torch.tensor(2.0, requires_grad=True)
    made = head(lambda output, _: wrap(output))
    assert made((token(), value), ()).item() == 2.0
    assert made.additional == {"router": 4.0}
    assert not made.additional["router"].requires_grad


def test_a_model_s_other_losses_are_reported_by_themselves():
    value = torch.tensor(2.0, requires_grad=True)
    output = {"loss": value, "aux_loss": value * 3, "logits": value, "loss_dict": None}
    made = head(rebuild=lambda leaves: output)
    made((token(), value), ())
    assert made.additional == {"aux_loss": 6.0}


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda loss: {"router": loss}, 'under "loss" no loss'),
        (lambda loss: (loss, {"router": 1.0}), "under 'router' a float"),
        (lambda loss: (loss, loss), "a tuple"),
    ],
)
def test_what_a_loss_fn_may_not_return_is_named(wrap, message):
    made = head(lambda output, _: wrap(output))
    with pytest.raises(RuntimeGuardError, match=message):
        made((token(), torch.ones((), requires_grad=True)), ())


def test_a_loss_with_parameters_is_the_last_layer():
    loss_fn = nn.Linear(2, 1)
    (spec,) = head(loss_fn).layer_specs()
    layer = spec.build()
    assert dict(layer.named_parameters()).keys() == {"loss_fn.weight", "loss_fn.bias"}
    assert layer.loss_fn is loss_fn
    passed = (token(), torch.ones(2))
    assert layer(passed) is passed
    assert head(nn.MSELoss()).layer_specs() == head(len).layer_specs() == []


def test_an_evaluation_keeps_leaves_and_may_do_without_a_loss():
    made = head(lambda output, _: 1 / 0, rebuild=lambda leaves: {"out": leaves[0]})
    made.evaluation = Evaluation(keeps_outputs=True, computes_loss=False)
    value = torch.ones(2)
    assert made([token(), value], ()).item() == 0.0
    (leaves,) = made.evaluation.outputs
    assert made.rebuild(leaves)["out"] is value
