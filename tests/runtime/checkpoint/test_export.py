"""Weights become a checkpoint, and a checkpoint weights, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import nn

from partitioner import partition
from partitioner.cli import main
from tests.models import MODELS, gpt2

TARGET = """
import torch
from tests.models import MODELS, gpt2
torch.manual_seed(1)
model = gpt2(0.0, layers=2)
example_inputs = MODELS["gpt2-labels"].example()
"""


PLANNED = ("{0}/target.py", "--plan", "{0}/plan.json")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Hugging Face model's folder, its plan, and the checkpoint made of both."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "target.py").write_text(TARGET)
    torch.manual_seed(0)
    model: Any = gpt2(0.0, layers=2)
    model.save_pretrained(folder / "weights")
    example = MODELS["gpt2-labels"].example()
    plan = partition(model, 2, example_inputs=example, device="h100", gap=0.05)
    plan.save(folder / "plan.json")
    result = run(
        "import", folder / "weights", folder / "target.py",
        "--plan", folder / "plan.json", "-o", folder / "checkpoints",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights" / "model.safetensors")


def test_a_hugging_face_model_comes_back_as_it_was(folder, tmp_path):
    from transformers import GPT2LMHeadModel

    result = run("export", folder / "checkpoints", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "of step 0" in result.stderr
    stored = load_file(tmp_path / "out" / "model.safetensors")
    expected = weights(folder)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in expected)
    loaded, told = GPT2LMHeadModel.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(told.values()), told
    torch.manual_seed(0)
    original: Any = gpt2(0.0, layers=2)
    theirs = loaded.state_dict()
    for name, value in original.state_dict().items():
        assert torch.equal(value, theirs[name])
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert loaded.config.n_layer == original.config.n_layer


def test_shards_have_an_index_and_another_dtype(folder, tmp_path):
    from transformers import GPT2LMHeadModel

    checkpoint, out = folder / "checkpoints" / "global_step0", tmp_path / "out"
    result = run(
        "export", checkpoint, "-o", out, "--dtype", "bfloat16",
        "--max-shard-size", "20KB",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 3
    assert {path.name for path in out.glob("*.safetensors")} == files
    loaded, told = GPT2LMHeadModel.from_pretrained(
        out, output_loading_info=True, dtype="auto"
    )
    assert not any(told.values()), told
    theirs = loaded.state_dict()
    for name, value in weights(folder).items():
        assert torch.equal(value.bfloat16(), theirs[name])
    # Shards go in again.
    again = run(
        "import", out, folder / "target.py",
        "--plan", folder / "plan.json", "-o", tmp_path / "again",
    )  # fmt: skip
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["export", "{0}/checkpoints", "-o", "{0}"], "is there already"),
        (["export", "{0}/weights", "-o", "{1}/out"], "is no checkpoint"),
        (["export", "{0}/checkpoints", "-o", "{1}/o", "--max-shard-size", "x"], "5GB"),
        (
            ["import", "{0}", *PLANNED, "-o", "{1}"],
            "holds neither model.safetensors nor",
        ),
        (
            ["import", "{0}/plan.json", *PLANNED, "-o", "{1}"],
            "cannot be read as safetensors",
        ),
        (
            ["import", "{0}/weights", *PLANNED, "-o", "{0}/checkpoints"],
            "is there already",
        ),
    ],
)
def test_refusals_say_what_to_do(folder, tmp_path, arguments, told):
    result = run(*(each.format(folder, tmp_path) for each in arguments))
    assert result.exit_code == 1, result.output
    assert told in result.stderr
    assert "hint: " in result.stderr
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: w.pop("transformer.h.1.ln_1.bias"), "transformer.h.1.ln_1.bias is"),
        (
            lambda w: w.update({"transformer.ln_f.bias": torch.ones(3)}),
            "has shape (3,)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, tmp_path, change, told):
    changed = weights(folder)
    change(changed)
    save_file(changed, tmp_path / "model.safetensors")
    result = run(
        "import", tmp_path, folder / "target.py",
        "--plan", folder / "plan.json", "-o", tmp_path / "checkpoints",
    )  # fmt: skip
    assert result.exit_code == 1
    assert told in result.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_a_damaged_file_is_not_exported(folder, tmp_path):
    checkpoint = folder / "checkpoints" / "global_step0"
    for path in sorted(checkpoint.iterdir()):
        if path.name.startswith("mp_rank"):
            continue  # holds no weights
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        result = run("export", checkpoint, "-o", tmp_path / "out")
        path.write_bytes(whole)
        assert result.exit_code == 1
        assert f"{path.name} is damaged" in result.stderr
        assert not (tmp_path / "out").exists()


class Untied(nn.Module):
    """Two names of one weight, no class of transformers, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.table(x)))


def test_every_name_of_a_plain_model_is_stored(tmp_path):
    model = Untied()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    del state["head.weight"]  # the other name is enough
    save_file(state, tmp_path / "weights.safetensors")
    plan = partition(model, 2, example_inputs=torch.tensor([1, 2, 3]), device="h100")
    plan.save(tmp_path / "plan.json")
    (tmp_path / "target.py").write_text(
        "from tests.runtime.checkpoint.test_export import Untied\nmodel = Untied()\n"
    )
    result = run(
        "import", tmp_path / "weights.safetensors", tmp_path / "target.py",
        "--plan", tmp_path / "plan.json", "-o", tmp_path / "checkpoints",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("export", tmp_path / "checkpoints", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = load_file(tmp_path / "out" / "model.safetensors")
    fresh = Untied()
    fresh.load_state_dict(found)
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name])
    assert not (tmp_path / "out" / "config.json").exists()
