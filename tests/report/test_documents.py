"""What ``--json`` prints keeps to the published schemas, and they to the code."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

import partitioner
from partitioner import Link
from partitioner.assess.compare import Split
from partitioner.assess.explain import Explanation
from partitioner.assess.limits import Limit
from partitioner.assess.variants import Variant
from partitioner.cluster import Cluster
from partitioner.cost.given import Cost
from partitioner.cost.memory import HeldBytes
from partitioner.costed import NodeCost
from partitioner.doctor import examine, read_machine
from partitioner.doctor.machine import Machine
from partitioner.doctor.pci import Accelerator
from partitioner.graph import Constraints
from partitioner.options import Options
from partitioner.report.as_json import as_json
from partitioner.report.console import to_text
from partitioner.report.documents import (
    DOCUMENTS,
    examination,
    made_schema,
    plan,
    reports,
    schema,
)
from partitioner.report.inspection import inspection_report
from partitioner.runtime.guards import SizeGuard
from partitioner.solve.parts import Device
from partitioner.timeline import Trace, usage
from tests.timeline.recorded import document, written
from tests.zoo.entry import built, example
from tests.zoo.registry import ENTRIES


def check(command: str, content: dict[str, Any]) -> None:
    """Validate a document as it is printed."""
    Draft202012Validator(schema(command)).validate(json.loads(as_json(content)))


@pytest.mark.parametrize("command", sorted(DOCUMENTS))
def test_the_published_schema_is_the_one_of_the_types(command: str) -> None:
    found = schema(command)
    Draft202012Validator.check_schema(found)
    assert found == made_schema(command), (
        "write the files anew: python -m partitioner.report.documents"
    )


SAME = [
    (plan.PlanOptions, Options, {"device"}),
    (plan.DeviceOptions, Device, set()),
    (plan.ClusterOptions, Cluster, set()),
    (plan.Link, Link, set()),
    (plan.Constraints, Constraints, set()),
    (plan.Loss, NodeCost, set()),
    (plan.GivenFigures, Cost, set()),
    (plan.Guard, SizeGuard, set()),
    (reports.Limit, Limit, set()),
    (reports.Variant, Variant, set()),
    (reports.Explanation, Explanation, set()),
    (examination.Machine, Machine, {"unknown"}),
    (examination.Accelerator, Accelerator, set()),
]


@pytest.mark.parametrize(("document", "record", "more"), SAME)
def test_documents_have_the_fields_of_records(
    document: Any, record: Any, more: set[str]
) -> None:
    names = {each.name for each in fields(record)}
    assert set(get_type_hints(document)) == names | more


def test_documents_have_all_but_a_few_fields_of_records() -> None:
    splits = {each.name for each in fields(Split)} - {"stage_of"}
    assert set(get_type_hints(reports.Split)) == splits
    held = {each.name for each in fields(HeldBytes)}
    assert held < set(get_type_hints(plan.StageMemory))


ZOO = ("gpt-2", "t5", "llama with labels", "vit", "resnet", "gru")
CONSTRAINED: dict[str, Any] = {
    "cluster": {"devices_per_node": 1, "between_nodes": "ib-400"},
    "memory_limit": "40GiB",
    "checkpointing": "all",
    "schedule": "dualpipev",
}


@pytest.mark.parametrize("name", ZOO)
def test_reports_of_real_models(name: str) -> None:
    entry = ENTRIES[name]
    options = CONSTRAINED if name == "vit" else {}
    found = partitioner.partition(
        built(entry), 2, example_inputs=example(entry), device="h100", **options
    )
    document = found.to_dict()
    check("inspect", document)
    for by in ("module", "operator", "node"):
        check("inspect", {**document, "breakdown": found.breakdown(by, sort="flops")})
    text = to_text(inspection_report(document))
    assert max(map(len, text.splitlines())) <= 80


@pytest.fixture(scope="module")
def small() -> partitioner.Plan:
    entry = ENTRIES["gpt-2"]
    return partitioner.partition(
        built(entry),
        2,
        example_inputs=example(entry),
        device="h100",
        costs={"transformer.h.0": partitioner.Cost(forward_s=1e-3)},
        pin={"transformer.wte": 0},
        keep_together=[["transformer.h.0", "transformer.h.1"]],
        devices=[{"speed": 1.0}, {"speed": 0.5, "memory_limit": "40GiB"}],
        dtype="bfloat16",
    )


def test_what_else_inspect_shows(small: partitioner.Plan) -> None:
    document = {
        **small.to_dict(),
        "timeline": small.timeline(),
        "comparison": small.compare().to_dict(),
        "explanation": small.explain().to_dict(),
    }
    check("inspect", document)
    check("replan", {**small.to_dict(), "before": document["simulation"]})


def test_a_verification_with_errors_that_are_no_numbers(
    small: partitioner.Plan,
) -> None:
    document = small.verify().to_dict()
    check("verify", document)
    document["modes"]["train"]["max_output_error"] = float("nan")
    check("verify", document)


def test_a_tuning() -> None:
    entry = ENTRIES["gpt-2"]
    tuning = partitioner.tune(
        built(entry), example_inputs=example(entry), gpus=2, batch=8, device="h100"
    )
    check("tune", tuning.to_dict())


def test_a_recorded_run(small: partitioner.Plan, tmp_path: Path) -> None:
    recorded = {
        "forecast": {
            "schedule": "1f1b",
            "step_s": 1.0,
            "bubble_share": 0.1,
            "stages": [{"forward_s": 1.0, "backward_s": 2.0, "recompute_s": 0.0}] * 2,
        },
        "gpu_use": [{"not_sampled": "the stages run on a cpu"}, {"samples": 3}],
    }
    modules = [{"stage": 0, "module": "transformer.h.0", "took_s": 1e-9}]
    for about in ({}, recorded):
        trace = document(small.simulation, stages=2, modules=modules, about=about)
        found = usage(Trace.load(written(tmp_path / "trace.json", trace)))
        check("trace", found.to_dict())


def test_an_examination() -> None:
    config = {"train_batch_size": 3, "fp16": {"enabled": True}, "unknown": 1}
    for machine in (None, read_machine()):
        check("doctor", examine(config, machine=machine).to_dict())


@pytest.mark.parametrize("path", [(), ("provenance",), ("stages", 0, "memory")])
def test_a_key_more_or_less_breaks_the_schema(
    small: partitioner.Plan, path: tuple[str | int, ...]
) -> None:
    whole = json.loads(as_json(small.to_dict()))
    for change in (lambda part: part.update(more=1), lambda part: part.popitem()):
        changed = copy.deepcopy(whole)
        part = changed
        for step in path:
            part = part[step]
        change(part)
        with pytest.raises(ValidationError):
            check("inspect", changed)
