"""Example inputs in every form, bound to the forward's signature and named after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.inputs import CallArguments, resolve_example
from partitioner.emit import emit
from partitioner.emit.build import batch_adapter
from partitioner.errors import ExampleInputsError
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture.toys import Toy
from tests.captured import BATCH, seeded, two_stages


class Takes(Toy):
    def forward(
        self,
        x: Tensor,
        states: Any = None,
        *,
        scale: float = 1.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        h = self.first(x) * scale
        if states is not None:
            h = h + states["a"][0] * states["a"][1]
        h = self.second(h)
        return h if mask is None else h * mask


NESTED = {"a": (BATCH + 1, 2.0), "b": None}


@pytest.mark.parametrize(
    ("example", "names"),
    [
        (BATCH, ["x"]),
        ((BATCH,), ["x"]),
        ([BATCH, None], ["x"]),
        ({"x": BATCH, "mask": BATCH}, ["x", "mask"]),
        ({"x": BATCH, "mask": None, "scale": 2.0}, ["x"]),
        ((BATCH, NESTED), ["x", "states_a_0"]),
        (CallArguments(args=(BATCH,), kwargs={"mask": BATCH}), ["x", "mask"]),
    ],
)
def test_every_form_is_recorded_and_cut(example: Any, names: list[str]):
    graph = capture(seeded(Takes()), example)
    assert [spec.name for spec in graph.inputs] == names
    tensors = input_tensors(graph, example)
    assert verify(graph, two_stages(graph, "first"), tensors).ok


def test_a_batch_reaches_the_leaves_in_order():
    example = (BATCH, NESTED)
    graph = capture(seeded(Takes()), example)
    adapter = batch_adapter(graph, emit(graph, two_stages(graph, "first")))
    inputs, labels = adapter({"x": BATCH, "states": NESTED})
    assert [torch.equal(a, b) for a, b in zip(inputs, (BATCH, BATCH + 1), strict=True)]
    assert labels == ()


def test_variable_arguments_are_numbered():
    class Many(Toy):
        def forward(self, *xs: Tensor, **named: Tensor) -> Tensor:
            return self.second(self.first(xs[0]) * xs[1] + named["extra"])

    inputs = CallArguments(args=(BATCH, BATCH), kwargs={"extra": BATCH})
    graph = capture(seeded(Many()), inputs)
    assert [spec.name for spec in graph.inputs] == ["args_0", "args_1", "extra"]
    tensors = input_tensors(graph, None)
    assert verify(graph, two_stages(graph, "first"), tensors).ok


def test_names_that_python_reserves_are_no_trouble():
    class Reserved(Toy):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.second(self.first(batch["class"]) + batch["a b"])

    graph = capture(seeded(Reserved()), ({"class": BATCH, "a b": BATCH},))
    tensors = input_tensors(graph, None)
    assert verify(graph, two_stages(graph, "first"), tensors).ok


def test_the_models_own_example_is_used():
    class Lightning(Takes):
        example_input_array = (BATCH,)

    found = resolve_example(Lightning(), None)
    assert found.notes == ("example inputs: the model's own example_input_array",)

    class HuggingFace(Takes):
        dummy_inputs = {"x": BATCH}  # noqa: RUF012

    found = resolve_example(HuggingFace(), None)
    assert "tiny" in found.notes[0]
    assert found.kwargs["x"] is BATCH


def test_without_an_example_the_error_says_what_to_pass():
    with pytest.raises(
        ExampleInputsError, match="no example inputs for Takes"
    ) as caught:
        resolve_example(Takes(), None)
    assert "Takes.forward takes x, states, scale, mask" in caught.value.hint


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"y": BATCH}, "do not fit Takes.forward"),
        ((BATCH, None, BATCH), "do not fit Takes.forward"),
        ((), "do not fit Takes.forward"),
        ((1.0,), "hold no tensor"),
        ("text", "example_inputs is a str"),
        (3, "example_inputs is a int"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(example: Any, message: str):
    with pytest.raises(ExampleInputsError, match=message) as caught:
        resolve_example(Takes(), example)
    assert caught.value.hint


def test_verifying_with_inputs_of_another_form_is_refused():
    graph = capture(seeded(Takes()), BATCH)
    with pytest.raises(ExampleInputsError, match=r"inputs are \['x', 'mask'\]"):
        input_tensors(graph, {"x": BATCH, "mask": BATCH})


def test_a_tensor_given_twice_is_two_inputs():
    model = seeded(Takes())
    graph = capture(model, {"x": BATCH, "mask": BATCH})
    tensors = [BATCH, BATCH * 3]
    assert verify(graph, two_stages(graph, "first"), tensors).ok
    assert isinstance(model, nn.Module)
