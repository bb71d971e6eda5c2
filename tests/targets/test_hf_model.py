"""Targets that are models of transformers: found, chosen, built, refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from partitioner.errors import TargetError
from partitioner.targets import HuggingFaceOptions, Target, open_target
from tests.targets.hugging_face import write


def load(place: Path | str, **options: Any) -> Target:
    with open_target(str(place), options=HuggingFaceOptions(**options)) as target:
        return target


def failure(place: Path | str, **options: Any) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load(place, **options)
    return caught.value


def test_a_folder_is_built_on_meta(tmp_path: Path) -> None:
    folder = write(tmp_path / "llama", "LlamaForCausalLM")
    target = load(folder)
    assert type(target.model).__name__ == "LlamaForCausalLM"
    assert target.name == f"{folder} (LlamaForCausalLM)"
    assert target.model.training
    parameters = list(target.model.parameters())
    assert {each.device.type for each in parameters} == {"meta"}
    assert {each.dtype for each in parameters} == {torch.bfloat16}


def test_with_weights_it_is_random_and_the_same_each_time(tmp_path: Path) -> None:
    folder = str(write(tmp_path, "GPT2LMHeadModel"))
    state = torch.random.get_rng_state()
    models = []
    for _ in range(2):
        with open_target(folder, weights=True) as target:
            models.append(target.model)
    for one, other in zip(*(each.parameters() for each in models), strict=True):
        assert one.device.type == "cpu"
        assert torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_file_itself_is_a_target(tmp_path: Path) -> None:
    folder = write(tmp_path, "ViTForImageClassification")
    moved = (folder / "config.json").rename(folder / "small.json")
    assert type(load(moved).model).__name__ == "ViTForImageClassification"


@pytest.mark.parametrize("asked", ["BertForMaskedLM", "AutoModelForMaskedLM"])
def test_another_class_may_be_asked_for(tmp_path: Path, asked: str) -> None:
    target = load(write(tmp_path, "BertModel"), hf_class=asked)
    assert type(target.model).__name__ == "BertForMaskedLM"
    assert "by --hf-class" in target.notes[0]


def test_without_architectures_it_is_a_causal_lm(tmp_path: Path) -> None:
    folder = write(tmp_path, "GPT2LMHeadModel", architectures=False)
    target = load(folder)
    assert type(target.model).__name__ == "GPT2LMHeadModel"
    assert "taken as a causal LM" in target.notes[0]


def test_without_architectures_and_with_no_causal_lm(tmp_path: Path) -> None:
    folder = write(tmp_path, "ViTForImageClassification", architectures=False)
    error = failure(folder)
    assert "there is no causal LM of its kind, vit" in error.message
    assert "AutoModelForImageClassification" in error.hint


def test_a_class_for_the_text_of_a_larger_model(tmp_path: Path) -> None:
    folder = write(tmp_path, "CLIPModel")
    target = load(folder, hf_class="CLIPTextModel")
    assert type(target.model).__name__ == "CLIPTextModel"


def test_a_misspelt_class_is_answered_with_the_nearest(tmp_path: Path) -> None:
    error = failure(write(tmp_path, "BertModel"), hf_class="BertForMaskLM")
    assert "has no model class BertForMaskLM" in error.message
    assert "BertForMaskedLM" in error.hint


@pytest.mark.parametrize("name", ["BertConfig", "Trainer", "pipeline"])
def test_what_is_no_model_is_no_class(tmp_path: Path, name: str) -> None:
    error = failure(write(tmp_path, "BertModel"), hf_class=name)
    assert f"has no model class {name}" in error.message


def test_a_class_of_another_architecture(tmp_path: Path) -> None:
    error = failure(write(tmp_path, "BertModel"), hf_class="LlamaForCausalLM")
    assert "LlamaForCausalLM takes a LlamaConfig, and" in error.message
    assert "config.json is a BertConfig" in error.message
    assert "AutoModelForMaskedLM" in error.hint


def test_an_auto_class_without_this_architecture(tmp_path: Path) -> None:
    folder = write(tmp_path, "ViTForImageClassification")
    error = failure(folder, hf_class="AutoModelForCausalLM")
    assert "AutoModelForCausalLM cannot be built from" in error.message
    assert "AutoModelForImageClassification" in error.hint


def edited(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_an_architecture_that_transformers_lacks(tmp_path: Path) -> None:
    folder = edited(write(tmp_path, "BertModel"), model_type="tomorrow")
    error = failure(folder)
    assert "has no architecture 'tomorrow'" in error.message
    assert "update transformers" in error.hint


def test_code_of_a_model_s_own_is_not_run(tmp_path: Path) -> None:
    changes = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')")
    error = failure(edited(write(tmp_path, "BertModel"), **changes))
    assert "'own', brings Python code of its own: it is not run" in error.message
    assert "model.py" in error.hint


def test_quantization_is_told_to_be_left_out(tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 4}
    folder = edited(write(tmp_path, "GPT2LMHeadModel"), quantization_config=settings)
    notes = load(folder).notes
    assert any(
        note.startswith("quantization: config.json's is left out") for note in notes
    )
    plain = write(tmp_path / "plain", "GPT2LMHeadModel")
    assert not any(note.startswith("quantization") for note in load(plain).notes)


def test_a_class_that_is_named_but_not_there(tmp_path: Path) -> None:
    folder = edited(write(tmp_path, "BertModel"), architectures=["BertForNothing"])
    error = failure(folder)
    assert "names BertForNothing, which transformers" in error.message
    assert "--hf-class" in error.hint


def test_sizes_that_the_model_refuses(tmp_path: Path) -> None:
    folder = edited(write(tmp_path, "LlamaForCausalLM"), num_attention_heads=5)
    error = failure(folder)
    assert "config.json" in error.message
    assert error.__cause__ is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON: JSONDecodeError"),
        ("[]", "is no configuration of transformers: it has no model_type"),
        ('{"layers": 3}', "is no configuration of transformers: it has no model_type"),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert message in failure(tmp_path).message


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    error = failure(tmp_path / "config.json")
    assert error.message.startswith("there is no file")


def test_transformers_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, "BertModel")
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = failure(folder)
    assert "is a Hugging Face model, and transformers is not installed" in error.message
    assert "fx-partitioner[hf]" in error.hint


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as the Hub's library lays it out, with one model; an empty folder."""
    root = tmp_path / "cache"
    repository = root / "models--someone--tiny"
    write(repository / "snapshots" / "abc", "GPT2LMHeadModel")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", root)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def test_a_name_is_found_in_the_cache(cache: Path) -> None:
    assert type(load("someone/tiny").model).__name__ == "GPT2LMHeadModel"


def test_a_name_that_is_not_cached_is_not_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    error = failure("someone/large")
    assert error.message == (
        "someone/large is no file or folder here, and no model in Hugging Face's cache"
    )
    assert "hf download someone/large config.json --local-dir FOLDER" in error.hint
    assert (
        "no model in Hugging Face's cache" in failure("x", hf_class="BertModel").message
    )


def test_a_module_comes_before_the_cache(cache: Path) -> None:
    Path("local.py").write_text("from torch import nn\nmodel = nn.Identity()")
    assert type(load("local").model).__name__ == "Identity"
    sys.modules.pop("local")
    assert "there is no module absent" in failure("absent").message


def test_options_of_hugging_face_do_not_fit_python_code(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from torch import nn\nmodel = nn.Identity()")
    error = failure(path, seq_len=3, micro_batch=2)
    assert error.message.endswith("no Hugging Face model: --micro-batch, --seq-len")
    assert "example_inputs" in error.hint
