"""Captured models, shared between tests: recording one takes seconds."""

from __future__ import annotations

import copy
import random
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from partitioner.capture import capture
from partitioner.capture.tree import flatten, rebuild
from partitioner.emit import Placement
from partitioner.emit.write import Seeder
from partitioner.graph import ModelGraph, info
from partitioner.runtime.ops import in_region
from partitioner.verify import Verification, verify
from partitioner.verify.inputs import input_tensors
from tests.models import MODELS
from tests.placements import random_placement

BATCH = torch.linspace(-1.0, 1.0, 24).reshape(4, 6)
"""What the small modules of ``tests.capture.toys`` take."""


@cache
def captured(name: str) -> ModelGraph:
    """Return the recording of one entry of MODELS, with dropout on."""
    return capture(MODELS[name].model(), MODELS[name].example())


def seeded(model: nn.Module) -> nn.Module:
    """Give a small module weights that do not depend on other tests."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return model


def two_stages(graph: ModelGraph, first: str) -> Placement:
    """Cut right after the last node whose id starts with ``first``."""
    nodes = [node for node in graph.graph.nodes if info(node).kind == "compute"]
    last = max(i for i, node in enumerate(nodes) if info(node).id.startswith(first))
    stage_of = {node: int(i > last) for i, node in enumerate(nodes)}
    return Placement(stages=2, stage_of=stage_of, block_of={})


def cut_everywhere(graph: ModelGraph, tries: int = 4) -> list[Verification]:
    """Verify random legal cuts into two stages, half of them with recomputation."""
    tensors = input_tensors(graph, None)
    return [verify(graph, _cut(graph, seed), tensors) for seed in range(tries)]


def _cut(graph: ModelGraph, seed: int) -> Placement:
    placement = random_placement(graph, 2, random.Random(seed))
    if seed % 2:
        block_of = dict.fromkeys(placement.stage_of, "block")
        placement = Placement(stages=2, stage_of=placement.stage_of, block_of=block_of)
    return placement


def rerun(
    graph: ModelGraph,
    model: nn.Module,
    tensors: list[Tensor],
    seeder: Seeder | None = None,
) -> Any:
    """Run the recorded graph node by node, on the weights of ``model``."""
    queue = iter(tensors)
    env: dict[fx.Node, Any] = {}
    for node in graph.graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "placeholder":
            env[node] = next(queue)
        elif node.op == "get_attr":
            env[node] = _attribute(graph, model, str(node.target))
        elif node.op != "output":
            region = info(node).region
            call = _callable(node, model)
            if seeder is not None and info(node).draws:
                call = partial(seeder, info(node).draw_key, call)
            env[node] = in_region(
                region.grad_enabled, region.autocast, call, *args, **kwargs
            )
    return rebuild(
        graph.output, lambda leaf: env[leaf] if isinstance(leaf, fx.Node) else leaf
    )


def _attribute(graph: ModelGraph, model: nn.Module, target: str) -> Any:
    if target == "training":
        return model.training
    if target == "device":
        return torch.device("cpu")
    if target in graph.constants:
        return graph.constants[target]
    path, _, name = target.rpartition(".")
    return getattr(model.get_submodule(path), name)


def _callable(node: fx.Node, model: nn.Module) -> Any:
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    if node.op == "call_method":
        name = str(node.target)
        return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)
    return node.target


def twins(graph: ModelGraph) -> tuple[nn.Module, nn.Module]:
    """Return two copies of the recorded model, caches off."""
    pair = copy.deepcopy(graph.model), copy.deepcopy(graph.model)
    for model in pair:
        for module in model.modules():
            if hasattr(getattr(module, "config", None), "use_cache"):
                module.config.use_cache = False  # type: ignore[union-attr]
    return pair


def leaves(output: Any) -> list[Any]:
    """Return paths and leaves of an output, tensors as they are."""
    return list(flatten(output))
