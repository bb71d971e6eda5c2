"""Build every stage of a model on ``meta`` in this process, each as its rank would."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.emit import Placement, emit
from partitioner.emit.weights import weighted
from partitioner.graph import ModelGraph, info
from partitioner.runtime.segment import Segment
from tests.placements import random_placement

__all__ = ["assert_equal", "build", "every_tensor", "on_meta", "stages_of", "tensors"]


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def every_tensor(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under each of their names."""
    return dict(
        itertools.chain(
            model.named_parameters(remove_duplicate=False),
            model.named_buffers(remove_duplicate=False),
        )
    )


def build(graph: ModelGraph, given: Any, stages: int = 2, seed: int = 0):
    """Return the segments, one for each stage of a random legal cut."""
    if stages > 1:
        placement = random_placement(graph, stages, random.Random(seed))
    else:
        computing = [n for n in graph.graph.nodes if info(n).kind == "compute"]
        stage_of = dict.fromkeys(computing, 0)
        placement = Placement(stages=1, stage_of=stage_of, block_of={})
    specs = weighted(graph, emit(graph, placement), given).specs
    return [spec.build() for spec in specs]


def tensors(segments: list[Segment]) -> dict[str, Tensor]:
    """Return all that segments hold by original name; copies must be equal."""
    found: dict[str, Tensor] = {}
    for segment in segments:
        for name, tensor in every_tensor(segment).items():
            assert torch.equal(found.setdefault(name, tensor), tensor), name
    return found


def stages_of(
    make: Callable[[], nn.Module], example: Any, given: Any, **options: Any
) -> dict[str, Tensor]:
    """Record a model on ``meta``, build its stages; return what they hold."""
    model = on_meta(make)
    found = tensors(build(capture(model, example), given, **options))
    assert all(t.is_meta for t in every_tensor(model).values()), "not left alone"
    return found


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare all that is held with the original, bit for bit."""
    assert found, "nothing is held: nothing was tested"
    for name, tensor in found.items():
        if name in expected:  # the others are constants of the forward
            assert tensor.dtype == expected[name].dtype, name
            assert torch.equal(tensor, expected[name]), name
