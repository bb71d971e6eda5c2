"""What is wrong on one rank is raised on all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec
from torch import fx, nn

from partitioner.errors import PartitionerError, PlanMismatchError
from partitioner.runtime import agreement
from partitioner.runtime.agreement import agree, raise_on_all_ranks
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead
from partitioner.runtime.pipeline_module import PartitionedPipelineModule
from partitioner.runtime.segment import Segment, SegmentBody
from partitioner.runtime.ties import ParameterTie
from tests.distributed.launch import launch

pytestmark = pytest.mark.distributed


def told(function: Any, *arguments: Any) -> tuple[str, str]:
    """Return the kind and the message of the error that a call raises."""
    try:
        function(*arguments)
    except PartitionerError as error:
        return type(error).__name__, str(error)
    return "none", ""


def pipeline(
    parts: tuple[int, ...],
    modules: list[nn.Module],
    ties: tuple[ParameterTie, ...] = (),
) -> None:
    specs = []
    for index, module in enumerate(modules):
        graph = fx.Graph()
        result = graph.call_module("part", (graph.placeholder("value"),))
        graph.output((result,))
        body = SegmentBody(name=str(index), graph=graph, modules={"part": module})
        specs.append(LayerSpec(Segment, body, is_first=index == 0))
    loss = LossHead(lambda output, _: output, None, tuple, LabelsLayout())
    PartitionedPipelineModule(specs, parts=parts, ties=ties, loss_head=loss)


def fail_one(rank: int, error: Exception) -> None:
    with raise_on_all_ranks("reading the weights"):
        if dist.get_rank() == rank:
            raise error


def every_disagreement() -> dict[str, Any]:
    rank = dist.get_rank()
    results: dict[str, Any] = {
        "payload": agree({"fingerprint": "a", "cuts": [rank]}, what="the plan")
    }
    results["fingerprint"] = told(lambda: agree({"fingerprint": rank}, what="the plan"))
    plain = agreement.versions
    agreement.versions = lambda: {**plain(), "torch": f"9.{rank}"}
    results["versions"] = told(lambda: agree({"fingerprint": "a"}, what="the plan"))
    agreement.versions = plain
    results["unsendable"] = told(lambda: agree({"x": torch.float32}, what="the plan"))
    results["foreign"] = told(fail_one, 1, ValueError("no such file"))
    results["own"] = told(fail_one, 0, PlanMismatchError("another model", hint="look"))
    results["nobody"] = told(fail_one, 7, ValueError())
    trained = nn.Linear(2, 2)
    tie = ParameterTie(name="part.weight", stages=(0, 1))
    results["tied"] = told(pipeline, (0, 1, 2), [trained, nn.Linear(2, 2)], (tie,))
    results["sizes"] = told(pipeline, (0, 1, 2), [trained, nn.PReLU()], (tie,))
    lost = ParameterTie(name="gone", stages=(0, 1))
    results["lost"] = told(pipeline, (0, 1, 2), [trained, nn.Linear(2, 2)], (lost,))
    results["world"] = told(pipeline, (0, 1, 2, 3), [trained] * 3)
    return results


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return launch(2, every_disagreement)


def test_rank_zeros_payload_is_used(results):
    assert [each["payload"]["cuts"] for each in results] == [[0], [0]]


@pytest.mark.parametrize(
    ("case", "kind", "parts"),
    [
        ("fingerprint", "PlanMismatchError", ["fingerprint", "[0]: 0", "[1]: 1"]),
        ("versions", "RuntimeGuardError", ["versions differ", "9.0", "9.1"]),
        ("unsendable", "RuntimeGuardError", ["rank 0", "not JSON serializable"]),
        ("foreign", "RuntimeGuardError", ["reading the weights failed on rank 1"]),
        ("foreign", "RuntimeGuardError", ["1 of 2 ranks", "ValueError: no such file"]),
        ("own", "PlanMismatchError", ["rank 0", "another model", "hint: look"]),
        ("nobody", "none", []),
        ("tied", "none", []),
        ("sizes", "EmitError", ["'part.weight' differ", "(1,)", "(2, 2)"]),
        ("lost", "RuntimeGuardError", ["2 of 2 ranks", "0 parameters named gone"]),
        ("world", "RuntimeGuardError", ["2 processes for 3 stages", "start 3"]),
    ],
)
def test_all_ranks_raise_the_same(results, case, kind, parts):
    assert results[0][case] == results[1][case]
    assert results[0][case][0] == kind
    for part in parts:
        assert part in results[0][case][1]
