"""What users build on: names, options and what an import costs, frozen on purpose."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import partitioner
import partitioner.runtime
from partitioner import errors
from partitioner.cli import main

ROOT = Path(__file__).parent.parent

ERRORS = {
    "CaptureError",
    "CheckpointError",
    "ConflictError",
    "CostError",
    "DataDependentError",
    "EmitError",
    "ExampleInputsError",
    "ForwardError",
    "InfeasibleError",
    "MemoryLimitError",
    "OptionError",
    "PartitionerError",
    "PlanMismatchError",
    "RuntimeGuardError",
    "StageError",
    "TargetError",
    "TooManyStagesError",
    "TraceError",
    "WeightsError",
}
NAMES = ERRORS | {
    "Cluster",
    "Cost",
    "DeviceProfile",
    "InitialWeights",
    "Link",
    "Measurements",
    "Plan",
    "Verification",
    "__version__",
    "inspect_model",
    "measure_model",
    "partition",
    "tune",
}
TARGET_OPTIONS = {
    "--hf-class",
    "--batch",
    "--micro-batch",
    "--seq-len",
    "--image-size",
}
"""What to make of a Hugging Face model."""
CLUSTER_OPTIONS = {
    "--devices-per-node",
    "--between-nodes",
    "--within-node",
}
PLANNING_OPTIONS = CLUSTER_OPTIONS | {
    "--stages",
    "--micro-batches",
    "--device",
    "--replicas",
    "--zero-stage",
    "--offload-optimizer",
    "--cuda-graphs",
    "--measurements",
    "--memory-limit",
    "--dtype",
    "--optimizer",
    "--checkpointing",
    "--schedule",
    "--objective",
    "--leaf",
    "--no-cut-inside",
    "--keep-together",
    "--pin",
    "--equal-stages",
    "--solver",
    "--gap",
    "--time-limit",
    "--json",
}
NOT_TUNED = {
    "--stages",
    "--micro-batches",
    "--schedule",
    "--replicas",
    "--zero-stage",
    "--memory-limit",
    "--devices-per-node",
    "--offload-optimizer",
    "--cuda-graphs",
    "--objective",
    "--pin",
}
"""What ``tune`` decides by itself, or calls by another name, or does not do."""
COMMANDS = {
    "inspect": PLANNING_OPTIONS
    | TARGET_OPTIONS
    | {"--output", "-o", "--timeline", "--trace", "--compare", "--explain"}
    | {"--html", "--plan"}
    | {"--by", "--depth", "--sort"},
    "verify": PLANNING_OPTIONS | TARGET_OPTIONS,
    "measure": TARGET_OPTIONS
    | {"--dtype", "--device", "--compile", "--output", "-o", "--profile"},
    "export": {"--output", "-o", "--dtype", "--max-shard-size"},
    "import": {"--output", "-o", "--plan", "--tag"} | TARGET_OPTIONS,
    "trace": {"--json"},
    "doctor": {"--plan", "--env", "--stages", "--processes", "--total-steps"}
    | {"--fix", "--output", "-o", "--json"},
    "tune": {"--gpus", "--nodes", "--batch", "--memory", "--measure", "--output", "-o"}
    | (PLANNING_OPTIONS - NOT_TUNED)
    | TARGET_OPTIONS,
    "replan": {"--plan", "--from", "--output", "-o", "--html", "--json"}
    | TARGET_OPTIONS,
}
PLANNING = ("inspect", "verify")


def test_exported_names() -> None:
    assert set(partitioner.__all__) == NAMES
    assert partitioner.__all__ == sorted(partitioner.__all__)
    assert set(errors.__all__) == ERRORS


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_exported_name_loads(name: str) -> None:
    assert name in dir(partitioner)
    assert getattr(partitioner, name) is not None


@pytest.mark.parametrize("name", sorted(ERRORS - {"PartitionerError"}))
def test_every_error_is_ours(name: str) -> None:
    assert issubclass(getattr(partitioner, name), partitioner.PartitionerError)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Partition'"):
        _ = partitioner.Partition  # type: ignore[attr-defined]


def test_parameters_of_partition() -> None:
    parameters = inspect.signature(partitioner.partition).parameters
    assert list(parameters) == [
        "model",
        "stages",
        "example_inputs",
        "micro_batches",
        "device",
        "memory_limit",
        "dtype",
        "optimizer",
        "checkpointing",
        "schedule",
        "solver",
        "gap",
        "time_limit_s",
        "leaf",
        "keep_together",
        "no_cut_inside",
        "costs",
        "pin",
        "equal_stages",
        "objective",
        "devices",
        "cluster",
        "replicas",
        "zero_stage",
        "offload_optimizer",
        "cuda_graphs",
        "measurements",
        "loss_fn",
        "example_labels",
    ]
    kinds = {p.kind for name, p in list(parameters.items())[2:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_commands_and_their_options() -> None:
    assert isinstance(main, click.Group)
    found = {
        name: {flag for p in command.params for flag in p.opts if flag[0] == "-"}
        for name, command in main.commands.items()
    }
    assert found == COMMANDS


def test_options_default_to_what_the_function_does() -> None:
    assert isinstance(main, click.Group)
    parameters = inspect.signature(partitioner.partition).parameters
    for name in PLANNING:
        command = main.commands[name]
        given = command.make_context(name, ["model.py", "--stages", "2"]).params
        shared = (given.keys() & parameters.keys()) - {"stages"}
        assert len(shared) == len(PLANNING_OPTIONS) - len(
            {"--stages", "--json"} | CLUSTER_OPTIONS
        )
        for option in shared:
            assert given[option] == parameters[option].default, option


def test_options_of_tune_default_to_what_its_function_does() -> None:
    assert isinstance(main, click.Group)
    parameters = inspect.signature(partitioner.tune).parameters
    line = ["model.py", "--gpus", "8", "--batch", "64"]
    given = main.commands["tune"].make_context("tune", line).params
    of_target = {"target", "hf_class", "micro_batch", "seq_len", "image_size"}
    shared = given.keys() - of_target - {"as_json", "output", "top"}
    assert shared <= parameters.keys()
    for option in shared - {"gpus", "batch"}:
        assert given[option] == parameters[option].default, option


def test_version_is_the_distribution_s() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"$', text, flags=re.MULTILINE)
    assert found
    assert found[1] == partitioner.__version__


def all_modules() -> list[str]:
    found = pkgutil.walk_packages(partitioner.__path__, "partitioner.")
    return sorted(module.name for module in found if "__main__" not in module.name)


@pytest.mark.parametrize("name", all_modules())
def test_every_module_says_what_it_is_and_what_it_exports(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    missing = [export for export in module.__all__ if not hasattr(module, export)]
    assert not missing


def run_python(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_runtime_loads_nothing_of_the_compiler(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, sys
import partitioner.runtime as runtime
for module in pkgutil.walk_packages(runtime.__path__, "partitioner.runtime."):
    importlib.import_module(module.name)
ours = {n.split(".")[1] for n in sys.modules if n.startswith("partitioner.")}
print(sorted(ours - {"version"}), "pulp" in sys.modules, "highspy" in sys.modules)
"""
    assert run_python(code, tmp_path) == "['errors', 'files', 'runtime'] False False"


def test_package_itself_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys, partitioner; print('torch' in sys.modules)"
    assert run_python(code, tmp_path) == "False"


def test_runtime_refuses_another_name() -> None:
    code = """
try:
    import runtime
except ImportError as error:
    print(error)
"""
    assert "import partitioner.runtime" in run_python(code, ROOT)
