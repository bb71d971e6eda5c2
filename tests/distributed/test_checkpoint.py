"""A run that stops and goes on, on any plan, is the run that never stopped."""

from __future__ import annotations

import logging
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from safetensors.torch import load_file
from torch import Tensor, nn

from partitioner import CheckpointError, PartitionerError, partition
from partitioner.runtime.checkpoint.export import export
from partitioner.runtime.checkpoint.folders import CheckpointFolder
from partitioner.runtime.checkpoint.load import open_checkpoint, verify_files
from partitioner.runtime.checkpoint.saved_model import SavedModel
from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer
from partitioner.runtime.checkpoint.saved_values import SavedValues
from tests.distributed.launch import launch
from tests.distributed.resuming import (
    MICRO_BATCHES,
    WIDTH,
    Outcome,
    Run,
    build,
    endless,
    make_engine,
    stage_state,
    train,
    whole,
)

pytestmark = pytest.mark.distributed

RUNS = {
    "sgd": Run(),
    "adamw": Run(optimizer="adamw"),
    "zero1": Run(optimizer="adamw", zero=1),
    "bf16": Run(optimizer="adamw", bf16=True),
    "bf16-zero1": Run(optimizer="adamw", bf16=True, zero=1),
}
STEPS, SAVED = 6, 3
NOISY = Run(dropout=0.4)
VEE = Run(vee=True)


def in_three(run: Run) -> Run:
    return replace(run, stages=3, cut_seed=1, recompute=True)


def in_replicas(run: Run) -> Run:
    return replace(run, stages=1, zero=1)


def two_processes(root: Path) -> dict[str, Any]:
    """Never stopped; resumed unchanged with dropout; resumed as two replicas."""
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    found: dict[str, Any] = {
        name: train(run, STEPS, save={SAVED: (root, name)})
        for name, run in RUNS.items()
    }
    found["noisy"] = train(NOISY, STEPS, save={SAVED: (root, "noisy")})
    found["noisy again"] = train(NOISY, STEPS, load=(root, "noisy"))
    for name in ("sgd", "adamw"):
        found[f"{name} in replicas"] = train(
            in_replicas(RUNS[name]),
            STEPS,
            load=(root, name),
            save={SAVED + 1: (root, f"{name} in replicas")},
        )
    vee = {SAVED + 1: (root, "vee")}
    found["vee"] = train(VEE, STEPS, load=(root, "sgd"), save=vee)
    found["stock"] = stock(root)
    found["weights alone"] = weights_alone(root)
    found["refusals"] = refusals(root)
    return found


def three_processes(root: Path) -> dict[str, Any]:
    """Resumed on three stages, cut elsewhere; and written again at once."""
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    for name, run in RUNS.items():
        found[name] = train(
            in_three(run),
            STEPS,
            load=(root, name),
            save={SAVED: (root, f"{name} again")},
        )
    for name in ("sgd in replicas", "adamw in replicas"):
        run = in_three(RUNS[name.split()[0]])
        found[name] = train(run, STEPS, load=(root, name))
    found["vee"] = train(in_three(Run()), STEPS, load=(root, "vee"))
    return found


def stock(root: Path) -> Outcome:
    """Resume by DeepSpeed's own method, which keeps no data position."""
    engine, loader = make_engine(RUNS["sgd"])
    PipelineEngine.load_checkpoint(engine, str(root), "sgd")
    data = endless(loader)
    for _ in range(SAVED * MICRO_BATCHES):
        next(data)
    losses = [engine.train_batch(data).item() for _ in range(STEPS - SAVED)]
    outcome = Outcome(losses=losses, state=stage_state(engine))
    engine.destroy()
    return outcome


def weights_alone(root: Path) -> Outcome:
    """Begin anew with the weights of a checkpoint."""
    engine, loader = make_engine(RUNS["adamw"])
    engine.load_checkpoint(root, "adamw", load_module_only=True)
    assert engine.global_steps == 0
    assert loader.state_dict()["samples"] == 0
    assert not engine.optimizer.state
    outcome = Outcome(losses=[], state=stage_state(engine))
    engine.destroy()
    return outcome


class Unwilling:
    """A data loader that fails on one rank."""

    def state_dict(self) -> dict[str, Any]:
        if dist.get_rank() == 1:
            raise OSError("no position")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Unreadable:
    """What could only be read back by trusting a pickle."""


def refusals(root: Path) -> dict[str, tuple[str, str]]:
    """Return kind and text of every error that saving and loading should raise."""
    engine, _ = make_engine(RUNS["sgd"])
    before = stage_state(engine)
    damaged = root / "damaged"
    if dist.get_rank() == 0:
        shutil.copytree(root / "sgd", damaged)
        file = damaged / "layer_01-model_states.pt"
        file.write_bytes(file.read_bytes()[:-7])
    dist.barrier()
    rank = dist.get_rank()
    found = {
        "damaged": told(engine.load_checkpoint, root, "damaged"),
        "missing": told(engine.load_checkpoint, root, "nothing"),
        "dtype": told(engine.load_checkpoint, root, "sgd", custom_load_fn=print),
        "tags": told(engine.save_checkpoint, root, f"tag{rank}"),
        "object": told(engine.save_checkpoint, root, "refused", {"mine": Unreadable()}),
        "taken": told(engine.save_checkpoint, root, "refused", {"module": 1}),
        "folder": told(engine.save_checkpoint, root, "../elsewhere"),
        "attached": told(engine.attach, "data", [1]),
    }
    engine.attach("unwilling", Unwilling())
    found["one rank"] = told(engine.save_checkpoint, root, "refused")
    after = stage_state(engine)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert engine.global_steps == 0
    engine.destroy()
    plan = partition(
        nn.Sequential(nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)),
        2,
        example_inputs=torch.randn(2, WIDTH),
        micro_batches=1,
        device="h100",
    )
    other, *_ = plan.initialize(nn.functional.mse_loss)
    found["model"] = told(other.load_checkpoint, root, "sgd")
    assert other.load_checkpoint(root / "empty") == (None, None)
    other.destroy()
    return found


def told(function: Any, *arguments: Any, **options: Any) -> tuple[str, str]:
    try:
        function(*arguments, **options)
    except PartitionerError as error:
        return type(error).__name__, str(error)
    return "none", ""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def first(root) -> list[dict[str, Any]]:
    return launch(2, two_processes, root, timeout_s=280)


@pytest.fixture(scope="module")
def later(root, first) -> list[dict[str, Any]]:
    return launch(3, three_processes, root, timeout_s=280)


def largest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference of any tensor."""
    assert one.keys() == other.keys()
    return max((one[n].double() - other[n].double()).abs().max().item() for n in one)


def without_statistics(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out what each replica counts of its own batches."""
    return {n: t for n, t in state.items() if "running" not in n and "batches" not in n}


def joined(outcomes: list[dict[str, Any]], name: str) -> Outcome:
    ranks = [outcome[name] for outcome in outcomes]
    return Outcome(losses=ranks[0].losses, state=whole(ranks))


@pytest.mark.parametrize("name", RUNS)
def test_three_stages_go_on_where_two_stopped(first, later, name):
    whole_run, rest = joined(first, name), joined(later, name)
    tolerance = 0.0 if RUNS[name].bf16 else 1e-6
    assert rest.losses == pytest.approx(whole_run.losses[SAVED:], abs=tolerance)
    assert largest(whole_run.state, rest.state) <= tolerance


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_replicas_under_zero_go_on_and_so_do_stages_after_them(first, later, name):
    whole_run, replicas = joined(first, name), joined(first, f"{name} in replicas")
    again = joined(later, f"{name} in replicas")
    assert replicas.losses == pytest.approx(whole_run.losses[SAVED:], abs=1e-5)
    assert again.losses == pytest.approx(whole_run.losses[SAVED + 1 :], abs=1e-5)
    trained, expected = map(without_statistics, (again.state, whole_run.state))
    assert largest(expected, trained) <= (1e-6 if name == "sgd" else 1e-5)


def test_two_stages_on_a_rank_go_on_and_so_do_single_ones_after_them(first, later):
    whole_run, vee, again = joined(first, "sgd"), joined(first, "vee"), later[0]["vee"]
    assert vee.losses == pytest.approx(whole_run.losses[SAVED:], abs=1e-6)
    assert again.losses == pytest.approx(whole_run.losses[SAVED + 1 :], abs=1e-6)
    assert largest(whole_run.state, vee.state) <= 1e-6
    assert largest(whole_run.state, joined(later, "vee").state) <= 1e-6


def test_dropout_draws_the_same_at_an_unchanged_number_of_stages(first):
    whole_run, rest = joined(first, "noisy"), joined(first, "noisy again")
    assert rest.losses == whole_run.losses[SAVED:]
    assert largest(whole_run.state, rest.state) == 0.0
    assert whole_run.losses != joined(first, "sgd").losses


@pytest.mark.parametrize("name", RUNS)
def test_weights_copies_and_states_are_the_same_bits_on_another_plan(
    root, first, later, name
):
    mine, theirs = (_opened(root, tag) for tag in (name, f"{name} again"))
    names = set(mine.model.records) & set(theirs.model.records)
    assert len(names) == len(mine.model.records)
    for each in names:
        assert torch.equal(mine.model.value(each), theirs.model.value(each)), each
    trained = [each for each in names if each in mine.optimizer]
    assert len(trained) > 15
    for each in trained:
        assert torch.equal(mine.precise(each), theirs.precise(each)), each
        keys = mine.optimizer.keys(each)
        assert set(keys) == set(theirs.optimizer.keys(each)) != set()
        for key in keys:
            one, other = (v.optimizer.state(each, key) for v in (mine, theirs))
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), key
        assert mine.optimizer.options(each) == theirs.optimizer.options(each)


def _opened(root: Path, tag: str) -> SavedValues:
    path, manifest, _ = open_checkpoint(CheckpointFolder(root, tag))
    verify_files(path, manifest)
    model = SavedModel(path, manifest)
    return SavedValues(model, SavedOptimizer(path, manifest, manifest.plan))


@pytest.mark.parametrize(
    ("case", "kind", "parts"),
    [
        ("damaged", "CheckpointError", ["layer_01-model_states.pt is damaged"]),
        ("missing", "CheckpointError", ["nothing", "complete ones:", "sgd"]),
        ("dtype", "OptionError", ["custom_load_fn"]),
        ("tags", "PlanMismatchError", ["tag0", "tag1"]),
        ("object", "CheckpointError", ["Unreadable", "client_state"]),
        ("taken", "RuntimeGuardError", ["client_state holds module"]),
        ("folder", "OptionError", ["../elsewhere"]),
        ("attached", "OptionError", ["'data' is a list without state_dict()"]),
        ("one rank", "RuntimeGuardError", ["rank 1", "no position"]),
        ("model", "PlanMismatchError", ["0.weight is not in the checkpoint"]),
    ],
)
def test_refusals_are_the_same_on_all_ranks(first, case, kind, parts):
    found = [outcome["refusals"][case] for outcome in first]
    if case not in {"model", "folder"}:
        assert found[0] == found[1]
    assert found[0][0] == kind
    for part in parts:
        assert part in found[0][1]


def test_every_file_is_missed_or_found_damaged_by_name(root, first, tmp_path):
    whole, rng = root / "bf16-zero1", random.Random(5)
    names = [path.name for path in whole.iterdir()]
    kinds = ("layer", "mp_rank", "bf16_zero", "rank", "unplaced", "loss", "manifest")
    assert all(any(name.startswith(kind) for name in names) for kind in kinds)
    shutil.copytree(whole, tmp_path / "copy")
    for path in sorted((tmp_path / "copy").iterdir()):
        content = path.read_bytes()
        for damage in (_cut, _flip, None):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage(content, rng))
            with pytest.raises(CheckpointError, match=path.name):
                _opened(tmp_path, "copy")
        path.write_bytes(content)
    _opened(tmp_path, "copy")


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) - 1)]


def _flip(content: bytes, rng: random.Random) -> bytes:
    # Not a blank: one for another leaves the manifest what it is.
    place = rng.choice([i for i, byte in enumerate(content) if byte > 32])
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(("name", "dtype"), [("sgd", None), ("bf16-zero1", "float32")])
def test_what_was_trained_is_exported_for_the_original(
    root, first, tmp_path, name, dtype
):
    export(CheckpointFolder(root, name), tmp_path / "out", dtype=dtype)
    model = build(RUNS[name])
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    saved = _opened(root, name)
    for each, value in model.state_dict().items():
        assert torch.equal(value, saved.precise(each)), each
    assert torch.equal(model.unused.weight, build(RUNS[name]).unused.weight)
    assert not torch.equal(model.table.weight, build(RUNS[name]).table.weight)


def test_weights_alone_are_those_that_were_saved(root, first):
    saved = _opened(root, "adamw")
    for name, value in joined(first, "weights alone").state.items():
        assert torch.equal(value, saved.model.value(name))


def test_deepspeeds_own_loading_reads_what_its_plan_saved(first):
    whole_run, rest = joined(first, "sgd"), joined(first, "stock")
    assert rest.losses == whole_run.losses[SAVED:]
    assert largest(whole_run.state, rest.state) == 0.0


def test_a_refused_checkpoint_leaves_nothing(root, first):
    assert not (root / "refused").exists()
    assert not list(root.glob(".*"))
