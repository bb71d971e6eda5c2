"""Verification runs the user's model, and leaves no trace in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner.capture import capture
from partitioner.emit import Placement
from partitioner.errors import ForwardError, PartitionerError
from partitioner.graph import info
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, captured, cut_everywhere, seeded, two_stages
from tests.models import MODELS

CUTS: dict[type[toys.Toy], str] = {toys.SharedNorm: "norm"}


@pytest.mark.parametrize(
    "toy", [toys.SharedNorm, toys.Counts, toys.Steps, toys.WritesInput]
)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(toy: type[toys.Toy], training: bool):
    model = seeded(toy()).train(training)
    weight = next(model.parameters())
    gradient = weight.grad = torch.ones_like(weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [id(value) for value in (*model.parameters(), *model.buffers())]
    example = BATCH.clone()
    graph = capture(model, example)
    generator = torch.get_rng_state()
    assert verify(graph, two_stages(graph, CUTS.get(toy, "first")), [example]).ok
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert [id(value) for value in (*model.parameters(), *model.buffers())] == objects
    assert weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(weight))
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert torch.equal(example, BATCH)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(module.training is training for module in model.modules())
    assert getattr(model, "last", None) is None
    assert not getattr(model, "log", [])


def test_parameters_that_a_forward_writes_are_put_back():
    class Teacher(toys.Toy):
        """Its second layer follows the first."""

        first: nn.Linear
        second: nn.Linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.second.weight.lerp_(self.first.weight, 0.5)
            return self.second(self.first(x))

    model = Teacher()
    seeded(model)
    before = model.second.weight.detach().clone()
    graph = capture(model, BATCH)
    assert "second.weight" in graph.written_buffers
    nodes = [node for node in graph.graph.nodes if info(node).kind == "compute"]
    one = Placement(stages=1, stage_of=dict.fromkeys(nodes, 0), block_of={})
    assert verify(graph, one, [BATCH]).ok
    assert torch.equal(model.second.weight, before)


def test_a_model_on_meta_has_no_weights_to_run_with():
    with torch.device("meta"):
        model = MODELS["mlp"].model()
    graph = capture(model, MODELS["mlp"].example())
    with pytest.raises(PartitionerError, match="meta device") as caught:
        verify(graph, two_stages(graph, "0@0"), input_tensors(graph, None))
    assert "small configuration" in caught.value.hint


def test_inputs_the_model_cannot_take():
    graph = captured("mlp")
    with pytest.raises(ForwardError, match="Sequential itself fails") as caught:
        verify(graph, two_stages(graph, "0@0"), [torch.zeros(2, 5)])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_state_that_only_python_keeps_is_seen_in_the_second_step():
    """Outside the model, where recording cannot know of it."""
    calls = [0]

    class Warms(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return self.second(self.first(x) * (2.0 if calls[0] > seen else 1.0))

    seen = 1_000
    graph = capture(seeded(Warms()), BATCH)
    seen = calls[0] + 1  # the first step is as recorded, the second is not
    found = verify(graph, two_stages(graph, "first"), [BATCH])
    assert found.modes["train"].worst <= 1e-5
    assert found.modes["eval"].max_output_error > 1e-2


def test_arguments_may_have_any_name():
    class Scales(nn.Module):
        def forward(self, module: Tensor, *, function: Tensor, key: Tensor) -> Tensor:
            return module * function + key

    class Names(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.scales = Scales()

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)[:, None]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = F.scaled_dot_product_attention(query=h, key=h, value=h).float()
                h = F.dropout(input=h, p=0.5, training=self.training)
                h = self.scales(module=h, function=h, key=h)
            return self.second(h[:, 0])

    for found in cut_everywhere(capture(seeded(Names()), BATCH)):
        assert found.ok, str(found)
