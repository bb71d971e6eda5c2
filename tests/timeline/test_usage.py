"""A trace is summed up as the run was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partitioner.simulate import ChunkPrice, PipelinePrice, Schedule, simulate
from partitioner.simulate.from_deepspeed import dualpipev, one_f_one_b
from partitioner.timeline import Trace, usage
from tests.simulate.pipelines import equal, prices
from tests.timeline.recorded import document, written

CLOSE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-9}
"""A trace holds microseconds as floats."""


@st.composite
def runs(draw) -> tuple[Schedule, PipelinePrice]:
    """What DeepSpeed can run, at uneven prices."""
    ranks, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    make = draw(
        st.sampled_from(
            [
                lambda: one_f_one_b(ranks, micro_batches),
                lambda: dualpipev(ranks, 2 * ranks + micro_batches),
            ]
        )
    )
    schedule = make()
    return schedule, draw(prices(schedule.chunks))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(case=runs())
def test_stages_bubbles_and_steps_are_those_of_the_run(
    tmp_path: Path, case: tuple[Schedule, PipelinePrice]
):
    schedule, price = case
    simulation = simulate(schedule, price)
    assume(sum(rank.compute_s for rank in simulation.ranks) > 0)
    path = written(
        tmp_path / "trace.json",
        document(simulation, stages=schedule.chunks, steps=2),
    )
    found = usage(Trace.load(path))
    assert found.steps == 2
    passes = [e for e in simulation.events if e.kind in ("forward", "backward")]
    ends_s = max(e.end_s for e in passes) - min(e.start_s for e in passes)
    assert found.step_s == pytest.approx(ends_s, **CLOSE)
    for stage, chunk in zip(found.stages, price.chunks, strict=True):
        assert stage.forward_s == pytest.approx(chunk.forward_s, **CLOSE)
        assert stage.busy_s == pytest.approx(
            chunk.forward_s
            + chunk.input_gradient_s
            + chunk.weight_gradient_s
            + chunk.recompute_s,
            **CLOSE,
        )
    for rank, used in zip(found.ranks, simulation.ranks, strict=True):
        assert rank.compute_s == pytest.approx(used.compute_s, **CLOSE)
        assert rank.bubble_share == pytest.approx(1 - used.compute_s / ends_s, **CLOSE)
        if schedule.name == "1f1b":  # one message at a time
            waited_s = sum(rank.waits_s.values())
            assert waited_s == pytest.approx(used.communication_s, **CLOSE)


def loaded(path: Path, **options: Any) -> Trace:
    simulation = simulate(one_f_one_b(3, 6), equal(3))
    return Trace.load(written(path, document(simulation, stages=3, **options)))


def test_recomputation_is_taken_out_of_the_backward(tmp_path: Path):
    plain = usage(loaded(tmp_path / "plain.json")).stages
    again = usage(loaded(tmp_path / "again.json", recompute_s={1: 0.25})).stages
    assert again[1].recompute_s == pytest.approx(0.25)
    assert again[1].backward_s == pytest.approx(plain[1].backward_s - 0.25)
    assert again[0].recompute_s == plain[0].recompute_s == 0
    assert again[1].busy_s == pytest.approx(plain[1].busy_s)


def test_modules_count_in_the_forward_alone(tmp_path: Path):
    calls = [{"stage": 2, "module": "head", "took_s": 0.125}] * 2
    found = usage(loaded(tmp_path / "trace.json", modules=calls)).stages
    assert found[2].modules_s == {"head": pytest.approx(0.25)}
    assert not found[0].modules_s


def test_a_module_has_its_share_of_all_forwards_though_timed_in_slower_ones(tmp_path):
    whole_s = usage(loaded(tmp_path / "plain.json")).stages[2].forward_s
    call = {"stage": 2, "module": "head", "took_s": whole_s / 4}
    simulation = simulate(one_f_one_b(3, 6), equal(3))
    content = document(simulation, stages=3, modules=[call])
    slower = []
    for event in content["traceEvents"]:
        args = event["args"]
        timed = args.get("micro_batch") == 1
        if event.get("cat") == "module" and not timed:
            continue
        twice = timed and args["stage"] == 2 and event["cat"] in ("forward", "module")
        slower.append(event | ({"dur": 2 * event["dur"]} if twice else {}))
    path = written(tmp_path / "trace.json", content | {"traceEvents": slower})
    found = usage(Trace.load(path)).stages[2]
    assert found.forward_s == pytest.approx(whole_s)
    assert found.modules_s == {"head": pytest.approx(whole_s / 4)}


def test_the_slowest_stage_is_named_with_its_ratio(tmp_path: Path):
    price = equal(4)
    slow = tuple(
        chunk if i != 2 else _times(chunk, 1.8) for i, chunk in enumerate(price.chunks)
    )
    simulation = simulate(one_f_one_b(4, 8), replace(price, chunks=slow))
    path = written(tmp_path / "trace.json", document(simulation, stages=4))
    found = usage(Trace.load(path))
    assert found.slowest.stage == 2
    assert found.unevenness == pytest.approx(1.8)
    assert found.uneven
    assert found.to_dict()["replan_advised"]
    even = simulate(one_f_one_b(4, 8), price)
    path = written(tmp_path / "even.json", document(even, stages=4))
    assert not usage(Trace.load(path)).uneven


def _times(chunk: ChunkPrice, factor: float) -> ChunkPrice:
    return replace(
        chunk,
        forward_s=factor * chunk.forward_s,
        input_gradient_s=factor * chunk.input_gradient_s,
        weight_gradient_s=factor * chunk.weight_gradient_s,
    )
