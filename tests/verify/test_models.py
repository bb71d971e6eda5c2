"""Every model of the table, cut at random: equal in both modes with dropout on."""

from __future__ import annotations

import random

import pytest
import torch

from partitioner.capture import capture
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.captured import captured
from tests.models import MODELS
from tests.placements import random_placement

CUTS = [(2, False), (3, True), (4, False)]
"""Stages, and whether about half of the blocks are recomputed."""
FEW = {"mlp": 1, "lstm": 2, "t5-labels": 1, "gpt2-labels": 2, "t5": 2}
"""Models with fewer cuts: too small for more stages, or slow."""


@pytest.mark.parametrize(
    ("name", "stages", "checkpoint"),
    [
        (name, stages, checkpoint)
        for name in MODELS
        for stages, checkpoint in CUTS[: FEW.get(name)]
    ],
)
def test_a_cut_model_equals_the_original(name: str, stages: int, checkpoint: bool):
    graph = captured(name)
    rng = random.Random(f"{name} {stages}")
    placement = random_placement(graph, stages, rng, checkpoint=checkpoint)
    found = verify(graph, placement, input_tensors(graph, None))
    assert found.ok, found
    assert found.tolerance == 1e-5
    assert set(found.modes) == {"train", "eval"}
    assert set(found.per_parameter) == {n for n, _ in graph.model.named_parameters()}


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet"])
def test_other_inputs_than_the_example(name: str):
    graph = captured(name)
    placement = random_placement(graph, 2, random.Random(5))
    tensors = input_tensors(graph, MODELS[name].example(samples=5, seed=9))
    assert verify(graph, placement, tensors).ok


@pytest.mark.parametrize(
    ("name", "converted"),
    [("t5", True), ("llama", True), ("llama", False), ("vit", False)],
)
def test_in_bfloat16(name: str, converted: bool):
    """Whether the user has converted the weights already, or the engine will."""
    model = MODELS[name].model()
    graph = capture(model, MODELS[name].example(), dtype=torch.bfloat16)
    if converted:
        model.to(torch.bfloat16)
    placement = random_placement(graph, 3, random.Random(0))
    found = verify(graph, placement, input_tensors(graph, None))
    assert found.ok, found
    assert found.tolerance == 2 * torch.finfo(torch.bfloat16).eps
    kept = torch.bfloat16 if converted else torch.float32
    assert {p.dtype for p in model.parameters()} == {kept}
