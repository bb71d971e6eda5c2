"""Scalars of a pipeline's steps come to DeepSpeed's own monitors."""

from __future__ import annotations

import csv
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from partitioner import OptionError, Plan
from partitioner.timeline import Trace, usage
from tests.distributed.launch import launch
from tests.distributed.sleeping import LAYERS, Run, batch_of, engine_of, plan_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

RUN = Run(ranks=2, micro_batches=4, slow=range(16, 24), factor=3.0)
DUAL = Run(ranks=2, micro_batches=4, schedule="dualpipev")
SAMPLES = 2 * RUN.micro_batches
"""Of a step: example inputs have two."""
PREFIX = "Train/Pipeline"


def monitored(folder: Path) -> list[str]:
    """Train five steps of which the second and the fourth are written, and trace."""
    plan, config = plan_of(RUN), {}
    for name in ("csv_monitor", "tensorboard"):
        config[name] = {"enabled": True, "output_path": str(folder / name)}
        config[name]["job_name"] = "mine"
    engine = engine_of(plan, config)
    plan.monitor(engine, every=2)
    batch = batch_of(RUN)
    for _ in range(4):
        engine.train_batch(iter(batch))
    engine.eval_batch(iter(batch))
    engine.stop_monitoring()
    with plan.trace(engine, folder / "trace.json"):
        engine.train_batch(iter(batch))
        engine.train_batch(iter(batch))
    plan.monitor(engine, every=2)
    engine.destroy()
    return [_refused(plan, {}, 1), _refused(plan, config, 0), *_dual(folder / "dual")]


def _dual(folder: Path) -> list[str]:
    config = {"csv_monitor": {"enabled": True, "output_path": str(folder)}}
    engine = engine_of(plan_of(DUAL), config)
    engine.start_monitoring(every=1)
    engine.train_batch(iter(batch_of(DUAL)))
    engine.destroy()
    return sorted(path.name for path in folder.glob("*/*.csv"))


def _refused(plan: Plan, config: dict[str, Any], every: int) -> str:
    engine = engine_of(plan, config)
    try:
        plan.monitor(engine, every=every)
    except OptionError as error:
        return str(error)
    finally:
        engine.destroy()
    return ""


@functools.cache
def found() -> dict[str, Any]:
    """Return what rank 0 wrote: by tag, from CSV files and from TensorBoard's."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = launch(2, monitored, folder, timeout_s=200)
        curves = {}
        for path in (folder / "csv_monitor" / "mine").glob("*.csv"):
            _, *rows = csv.reader(path.read_text().splitlines())
            curves[path.stem] = [(int(step), float(value)) for step, value in rows]
        events = EventAccumulator(str(folder / "tensorboard" / "mine"))
        events.Reload()
        return {
            "answers": answers,
            "csv": curves,
            "tensorboard": {
                tag: [(each.step, each.value) for each in events.Scalars(tag)]
                for tag in events.Tags()["scalars"]
            },
            "trace": usage(Trace.load(folder / "trace.json")),
        }


def test_the_steps_whose_turn_it_is_are_written_to_every_monitor():
    tags = {
        tag: curve
        for tag, curve in found()["tensorboard"].items()
        if tag.startswith(PREFIX)
    }
    assert f"{PREFIX}/bubble_share" in tags
    for tag, curve in tags.items():
        assert [step for step, _ in curve] == [2 * SAMPLES, 4 * SAMPLES]
        in_file = found()["csv"][tag.replace("/", "_")]
        assert [step for step, _ in in_file] == [step for step, _ in curve]
        for (_, shown), (_, written) in zip(curve, in_file, strict=True):
            assert shown == pytest.approx(written, rel=1e-6)


def test_values_are_those_of_a_trace():
    curves, trace = found()["csv"], found()["trace"]
    last = {name: curve[-1][1] for name, curve in curves.items()}
    for stage in trace.stages:
        name = f"Train_Pipeline_stage_{stage.stage}"
        assert last[f"{name}_forward_s"] == pytest.approx(stage.forward_s, rel=0.2)
        assert last[f"{name}_backward_s"] == pytest.approx(stage.backward_s, rel=0.2)
        assert f"{name}_recompute_s" not in last
    slow, quick = (last[f"Train_Pipeline_rank_{rank}_bubble_share"] for rank in (1, 0))
    assert 0 < slow < quick < 1
    assert last["Train_Pipeline_bubble_share"] == pytest.approx((slow + quick) / 2)
    assert last["Train_Pipeline_step_s"] >= 4 * 3 * LAYERS / 2 * RUN.forward_s
    for rank in range(2):
        assert 0.05 < last[f"Train_Pipeline_rank_{rank}_peak_host_memory_gib"] < 100


def test_a_cpu_has_no_curve_of_gpu_use_and_a_trace_says_why():
    assert not [name for name in found()["csv"] if "gpu_use" in name]
    assert (
        found()["trace"].to_dict()["gpu_use"]
        == [{"not_sampled": "the stages run on a cpu"}] * 2
    )


def test_stages_of_dualpipev_have_their_own_curves():
    names = found()["answers"][0][2:]
    stages = [name for name in names if "_stage_" in name]
    assert len(stages) == 4 * 2


def test_errors_say_what_to_do():
    for answers in found()["answers"]:
        nowhere, number = answers[:2]
        assert "no monitor" in nowhere
        assert "tensorboard" in nowhere
        assert "every=0" in number
