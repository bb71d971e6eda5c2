"""What a run took becomes what the parts cost, and a better plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partitioner import Cost, Plan, TraceError, measure_model, partition
from partitioner.timeline import Trace
from partitioner.timeline.forecast import forecast
from tests.timeline.recorded import document, written

LAYERS, STAGES = 12, 4
FORWARD_S = 1e-3


class Layer(nn.Sequential):
    """Two units, so that a cut may go through it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 8))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def planned(**options: Any) -> Plan:
    return partition(
        model(),
        STAGES,
        example_inputs=torch.zeros(2, 8),
        device="h100",
        micro_batches=16,
        costs={Layer: Cost(forward_s=FORWARD_S, backward_s=2 * FORWARD_S)},
        gap=0.0,
        **options,
    )


def recorded(plan: Plan, path: Path, **options: Any) -> Path:
    about = {**forecast(plan._case).about, **options.pop("about", {})}
    content = document(
        plan.simulation, stages=plan.problem.stages, about=about, **options
    )
    return written(path, content)


def stage_forward_s(plan: Plan) -> list[float]:
    return [stage.forward_s for stage in plan.score.stages]


def test_a_run_that_took_what_was_planned_changes_nothing(tmp_path: Path):
    plan = planned()
    again = plan.replan(recorded(plan, tmp_path / "trace.json"))
    assert again.assignment.stage_of == plan.assignment.stage_of
    assert again.objective_s == pytest.approx(plan.objective_s, rel=1e-6)
    assert stage_forward_s(again) == pytest.approx(stage_forward_s(plan), rel=1e-6)


def slowed(path: Path, stage: int, factor: float) -> None:
    """Make every pass of a stage take longer (only lengths are read of it)."""
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event.get("args", {}).get("stage") == stage:
            event["dur"] *= factor
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_layers_leave_a_stage_that_was_slow(tmp_path: Path, schedule: str):
    plan = planned(schedule=schedule)
    last = plan.problem.stages - 1
    path = recorded(plan, tmp_path / "trace.json")
    slowed(path, last, 3.0)
    again = plan.replan(path)
    counts = [plan.assignment.stage_of.count(last) for plan in (plan, again)]
    assert counts[1] < counts[0]
    stayed = again.reassigned(plan)
    assert stage_forward_s(stayed)[:-1] == pytest.approx(stage_forward_s(plan)[:-1])
    assert stage_forward_s(stayed)[-1] == pytest.approx(3 * stage_forward_s(plan)[-1])
    backward_s = [p.score.stages[-1].backward_s for p in (plan, stayed)]
    assert backward_s[1] == pytest.approx(3 * backward_s[0])
    assert again.simulation.step_s < stayed.simulation.step_s


def test_what_a_run_took_has_counted_the_host(tmp_path: Path):
    timings = measure_model(model(), example_inputs=torch.zeros(2, 8), device="cpu")
    blocks = {
        name: replace(each, host_s=3 * (each.forward_s + each.backward_s))
        for name, each in timings.blocks.items()
    }
    plan = partition(
        model(),
        STAGES,
        example_inputs=torch.zeros(2, 8),
        micro_batches=16,
        measurements=replace(timings, blocks=blocks),
    )
    assert all(stage.host_bound for stage in plan.score.stages)
    told = "the host sets the pace of stages 0, 1, 2, 3: larger micro-batches help, or"
    assert told in plan.to_dict()["provenance"]["prices"]
    again = plan.replan(recorded(plan, tmp_path / "trace.json"))
    assert not any(stage.host_bound for stage in again.score.stages)
    assert "host sets the pace" not in again.to_dict()["provenance"]["prices"]
    stayed = again.reassigned(plan)
    assert stayed.simulation.step_s == pytest.approx(plan.simulation.step_s)


def test_a_module_that_was_slow_costs_more_than_its_neighbours(tmp_path: Path):
    plan = planned()
    whole = plan.score.stages[1].forward_s
    first = next(n for n in plan.stages[1].modules if n.count(".") == 0)
    call = {"stage": 1, "module": first, "took_s": 0.75 * whole}
    path = recorded(plan, tmp_path / "trace.json", modules=[call])
    stayed = plan.replan(path).reassigned(plan)
    assert stayed.score.stages[1].forward_s == pytest.approx(whole)
    forward_s = {
        name: sum(
            unit.forward_s
            for unit, nodes in zip(
                stayed.problem.units, stayed.units.nodes, strict=True
            )
            if any(n.meta["info"].module.split(".")[0] == name for n in nodes)
        )
        for name in [str(int(first) + i) for i in range(3)]
    }
    assert forward_s[first] == pytest.approx(0.75 * whole)
    others = [s for name, s in forward_s.items() if name != first]
    assert others == pytest.approx([0.125 * whole] * 2)


def test_a_new_plan_is_saved_with_what_was_measured(tmp_path: Path):
    plan = planned()
    path = recorded(plan, tmp_path / "trace.json")
    slowed(path, 0, 2.0)
    again = plan.replan(path)
    again.save(tmp_path / "new.json")
    loaded = Plan.load(tmp_path / "new.json", model())
    assert loaded.to_dict() == again.to_dict()
    assert "parts as a run took" in str(again)
    twice = again.replan(recorded(again, tmp_path / "second.json"))
    assert len(twice.costed.given) == len(again.costed.given)


def test_a_trace_of_another_model_is_refused(tmp_path: Path):
    plan = planned()
    path = recorded(plan, tmp_path / "a.json", about={"fingerprint": "f" * 64})
    with pytest.raises(TraceError, match="another model: ffffffffffff"):
        plan.replan(path)
    other = partition(
        model(), 3, example_inputs=torch.zeros(2, 8), device="h100", micro_batches=16
    )
    with pytest.raises(TraceError, match="the trace has 3 stages, the plan 4"):
        plan.replan(recorded(other, tmp_path / "b.json"))


def broken(change: Any) -> Any:
    plan = planned()
    content = document(
        plan.simulation, stages=STAGES, about=dict(forecast(plan._case).about)
    )
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["otherData"].update(kind="else"), "is no trace of a run"),
        (lambda d: d["otherData"].update(schema_version=9), "schema version 9, not 1"),
        (lambda d: d["otherData"].update(stages="4"), "no whole trace: stages"),
        (lambda d: d["otherData"].update(stages=5), "no backward of stage 4"),
        (lambda d: d["otherData"].update(stages=3), "it says that it has 3 stages"),
        (lambda d: d.pop("traceEvents"), "no trace file: KeyError"),
        (lambda d: d["traceEvents"].append(7), "no trace file: AttributeError"),
        (lambda d: d["traceEvents"][-1].update(dur=float("nan")), "dur"),
        (lambda d: d["traceEvents"][-1].update(dur=-1.0), "dur"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, change: Any, said: str):
    path = written(tmp_path / "trace.json", broken(change))
    with pytest.raises(TraceError, match=said) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(TraceError, match=r"none\.json cannot be read"):
        Trace.load(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"otherData": {')
    with pytest.raises(TraceError, match="is no JSON"):
        Trace.load(tmp_path / "cut.json")
