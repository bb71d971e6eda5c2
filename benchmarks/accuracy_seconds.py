"""Predicted seconds of a stage next to the stage's own, run alone on this machine.

    python benchmarks/accuracy_seconds.py --models llama-1b vit-large --json out.json

For each model: the stages of a plan, and both stages of every whole-layer cut in two.
Prices once by measuring the parts and once by the device's profile alone. A stage
runs as in training: forward and backward, gradients added up as the engine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.models import SHAPES
from benchmarks.speed.alone import Stage, run_alone
from benchmarks.speed.ranks import join_alone
from benchmarks.speed.stages import in_turn
from benchmarks.speed.sums import sums_of
from benchmarks.speed.timing import free
from partitioner.capture import capture
from partitioner.cost import Measurements, Units, measure, price, problem, resolve
from partitioner.cost.blocks import block_spans
from partitioner.cost.work import Work
from partitioner.emit import Placement, emit
from partitioner.graph import ModelGraph, info
from partitioner.runtime.segment import Segment
from partitioner.solve import score, solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.costed import CostedGraph

STAGES = 4


@dataclass(kw_only=True)
class Result:
    """One model: seconds of stages, predicted in two ways and measured."""

    model: str
    capture_s: float = 0.0
    measure_s: float = 0.0
    measured_share: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    stages: list[dict[str, float]] = field(default_factory=list)
    cuts: list[dict[str, float]] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)
    work: list[dict[str, Any]] = field(default_factory=list)
    """Every distinct operation: FLOPs, bytes, seconds by both ways."""

    def summary(self) -> dict[str, float]:
        """Return median and worst error of both ways, and the rank correlations."""
        found = {}
        for way in ("measured", "profile"):
            errors = [abs(s[way] / s["real"] - 1) for s in self.stages]
            found[f"{way}: median error"] = statistics.median(errors)
            found[f"{way}: worst error"] = max(errors)
            found[f"{way}: Spearman"] = spearman(
                [cut[way] for cut in self.cuts], [cut["real"] for cut in self.cuts]
            )
        return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the rank correlation of two lists (Spearman, 1904)."""
    ranks = [torch.tensor(x).argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def examine(name: str, device: torch.device, folder: str | None, every: int) -> Result:
    """Plan, price and run one model."""
    shape = SHAPES[name]
    inputs = shape.inputs()
    with torch.device(device):
        model = shape.build().to(torch.bfloat16)
    started = time.perf_counter()
    graph = capture(model, inputs, dtype=torch.bfloat16)
    result = Result(model=name, capture_s=time.perf_counter() - started)
    started = time.perf_counter()
    timings = measure(graph, device=device, cache_folder=folder)
    result.measure_s = time.perf_counter() - started
    profile = resolve(None)
    ways = {
        "measured": price(graph, profile=profile, measurements=timings),
        "profile": price(graph, profile=profile),
    }
    result.measured_share = ways["measured"].measured_share
    result.failed = dict(timings.failed)
    result.unpriced = [item.operator for item in ways["profile"].unpriced]
    pairs = zip(inputs.values(), graph.inputs, strict=True)
    result.work = distinct_work(graph, ways, timings)
    tensors = [tensor.to(device, spec.dtype) for tensor, spec in pairs]
    statement, units = problem(ways["measured"], stages=STAGES, micro_batches=16)
    result.stages = rows(ways, units, list(solve(statement).stage_of), STAGES, tensors)
    for cut in whole_layer_cuts(graph, units)[::every]:
        both = rows(ways, units, cut, 2, tensors)
        result.cuts.append({k: max(row[k] for row in both) for k in both[0]})
    return result


def distinct_work(
    graph: ModelGraph, ways: dict[str, CostedGraph], timings: Measurements
) -> list[dict[str, Any]]:
    """Return what is known of each distinct operation."""
    work = Work(graph, compiled=False)
    firsts = {work.of_node(node): node for node in reversed(graph.graph.nodes)}
    found = []
    for signature, node in firsts.items():
        if signature in timings.nodes:
            cost = asdict(ways["profile"].costs[node])
            shapes = [list(meta.shape) for meta in info(node).outputs]
            alone = asdict(timings.nodes[signature])
            found.append(
                {"signature": signature, "shapes": shapes, **cost, "alone": alone}
            )
    return found


def whole_layer_cuts(graph: ModelGraph, units: Units) -> list[list[int]]:
    """Return the stage of each unit for every cut in two before a repeated module."""
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    starts = [min(place[n] for n in span.nodes) for span in block_spans(graph)]
    return [
        [int(min(place[n] for n in nodes) >= start) for nodes in units.nodes]
        for start in sorted(starts)[1:]
    ]


def rows(
    ways: dict[str, CostedGraph],
    units: Units,
    stage_of: list[int],
    stages: int,
    tensors: Sequence[Tensor],
) -> list[dict[str, float]]:
    """Return predicted and real seconds of every stage."""
    predicted = {way: predict(costed, stage_of, stages) for way, costed in ways.items()}
    graph = ways["measured"].graph
    real = run_stages(graph, placement(units, stage_of, stages), tensors)
    return [
        {**{way: predicted[way][s] for way in ways}, "real": real[s]}
        for s in range(stages)
    ]


def predict(costed: CostedGraph, stage_of: list[int], stages: int) -> list[float]:
    """Return seconds of each stage, forward and backward, nothing sent."""
    statement, _ = problem(costed, stages=stages, micro_batches=16)
    found = score(statement, stage_of, [False] * len(stage_of))
    return [stage.forward_s + stage.backward_s for stage in found.stages]


def placement(units: Units, stage_of: Sequence[int], stages: int) -> Placement:
    """Return the stage of every node."""
    found = {
        node: stage_of[unit]
        for unit, nodes in enumerate(units.nodes)
        for node in nodes
        if info(node).kind == "compute"
    }
    return Placement(stages=stages, stage_of=found, block_of={})


def run_stages(
    graph: ModelGraph, place: Placement, tensors: Sequence[Tensor]
) -> list[float]:
    """Run each stage alone on what the stage before really sends; return its seconds.

    As in training: forward and backward, gradients added as a plan's engine does.
    """
    layers = emit(graph, place)
    segments = [
        Segment(
            layer.body,
            receive=layer.receive,
            send=layer.send,
            is_first=layer.is_first,
        )
        for layer in layers.layers
    ]
    received: Any = tuple(tensors[index] for index in layers.first)
    device = tensors[0].device
    seconds = []
    for number in range(place.stages):
        part = segments[layers.parts[number] : layers.parts[number + 1]]
        weights = dict(nn.ModuleList(part).train().named_parameters())
        stage = Stage(
            forward=in_turn(part, hands_to_loss=False),
            loss=None,
            sums=sums_of(weights, graph.dtype, plans=True),
            is_first=number == 0,
        )
        alone = run_alone(stage, received, None, device)
        seconds.append(alone.seconds)
        received = alone.made
        del stage
        free(device)
    return seconds


def main() -> int:
    """Examine the chosen models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SHAPES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cache", help="folder for timings; default: the user's cache")
    parser.add_argument("--every", type=int, default=1, help="take each nth cut")
    options = parser.parse_args()
    device = join_alone("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16")
    results = []
    for name in options.models:
        results.append(examine(name, device, options.cache, options.every))
        print(name, {k: round(v, 3) for k, v in results[-1].summary().items()})
        if options.json:
            found = [{**asdict(r), **r.summary()} for r in results]
            options.json.write_text(json.dumps(found, indent=1))
        free(device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
