"""Random modules, recorded, run again, cut anywhere and recomputed: always equal."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from partitioner import DataDependentError
from partitioner.capture import capture
from partitioner.capture.tree import flatten
from partitioner.emit import Placement
from partitioner.graph import ModelGraph
from partitioner.verify import verify
from partitioner.verify.seeding import Seeding
from tests.capture.random_modules import Recipe, built, example, recipes
from tests.captured import rerun
from tests.placements import random_placement

BATCH, OTHER_BATCH = 3, 5


def runs(model: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether torch takes what the recipe writes in place, in both modes."""
    twin = copy.deepcopy(model)
    for training in (True, False):
        twin.train(training)
        own = {name: tensor.clone() for name, tensor in inputs.items()}
        try:
            leaves = [leaf for _, leaf in flatten(twin(**own))]
            found = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            roots = [tensor.sum() for tensor in found if tensor.requires_grad]
            torch.autograd.backward(roots)
        except RuntimeError:
            return False
    return True


def state(model: nn.Module, out: object) -> list[Tensor]:
    found = [leaf for _, leaf in flatten(out) if isinstance(leaf, Tensor)]
    return [*found, *model.buffers()]


def check_equal(graph: ModelGraph, inputs: dict[str, Tensor]) -> None:
    """Run the recorded graph and the model: the same bits, in both modes.

    Every draw is seeded by its name: one that nothing reads is not recorded.
    """
    for training in (True, False):
        mine, original = copy.deepcopy(graph.model), copy.deepcopy(graph.model)
        for model in (mine, original):
            model.train(training)
        seeding = Seeding(replace(graph, model=original))
        own = [tensor.clone() for tensor in inputs.values()]
        found = state(mine, rerun(graph, mine, own, seeding.seeder))
        own = [tensor.clone() for tensor in inputs.values()]
        with seeding.following():
            out = original(*own)
        expected = state(original, out)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
            assert a.requires_grad == b.requires_grad


def cut(graph: ModelGraph, rng: random.Random) -> Placement | None:
    """Cut at a random place; None if what is written in place leaves none."""
    try:
        placement = random_placement(graph, 2, rng)
    except (AssertionError, ValueError):
        return None
    if rng.random() < 0.5:
        return placement
    block_of = {
        node: span.id
        for span in reversed(graph.spans)
        if rng.random() < 0.5
        for node in span.nodes
        if node in placement.stage_of
    }
    return Placement(stages=2, stage_of=placement.stage_of, block_of=block_of)


def check(recipe: Recipe, shared: Recipe, seed: int) -> None:
    model = built(recipe, shared)
    inputs = {batch: example(batch) for batch in (BATCH, OTHER_BATCH)}
    assume(runs(model, inputs[BATCH]))
    try:
        graph = capture(model, inputs[BATCH])
    except DataDependentError as refusal:
        # In eval mode dropout hands on its argument: if the root reads that after a
        # write to the result, it reads another value in each mode, and is refused.
        assume("train and eval mode differ: an operand differs" not in str(refusal))
        raise
    rng = random.Random(seed)
    for given_inputs in inputs.values():
        check_equal(graph, given_inputs)
        placement = cut(graph, rng)
        if placement is not None:
            found = verify(graph, placement, list(given_inputs.values()))
            assert found.ok, found


@settings(
    deadline=None,
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(recipe=recipes(), shared=recipes(), seed=st.integers(0, 999))
def test_random_modules(recipe: Recipe, shared: Recipe, seed: int):
    check(recipe, shared, seed)
