"""Stages that are read from files hold what the loaded model holds, bit for bit."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from partitioner.capture import capture
from partitioner.emit import emit
from partitioner.emit.weights import weighted
from partitioner.errors import OptionError, WeightsError
from tests.captured import two_stages
from tests.models import MODELS
from tests.runtime.weights.building import (
    assert_equal,
    build,
    every_tensor,
    on_meta,
    stages_of,
)


def linear(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))


X = torch.ones(2, 4)


def save_shards(model: nn.Module, folder: Path) -> None:
    """Write a sharded folder, each tensor in the next of three files."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    index: dict[str, str] = {}
    for number in range(3):
        file = f"part-{number}.safetensors"
        part = {k: v for i, (k, v) in enumerate(state.items()) if i % 3 == number}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize("name", ["resnet", "lstm", "encoder"])
@pytest.mark.parametrize("form", ["shards", "single", "torch"])
def test_a_plain_model_from_files(name: str, form: str, tmp_path: Path):
    entry = MODELS[name]
    real = entry.model(seed=7)
    given: Path = tmp_path
    if form == "shards":
        save_shards(real, tmp_path)
    elif form == "single":
        save_file(real.state_dict(), tmp_path / "weights.safetensors")
    else:
        given = tmp_path / "last.pth"
        torch.save({"epoch": 3, "state_dict": real.state_dict()}, given)
    found = stages_of(entry.model, entry.example(), given, stages=3)
    assert_equal(found, every_tensor(real))


@pytest.mark.parametrize("name", ["gpt2-labels", "llama"])
def test_a_hugging_face_folder(name: str, tmp_path: Path):
    """Ties of which the files hold one name, rotary tables that they do not hold."""
    entry = MODELS[name]
    real = entry.model(seed=7)
    real.save_pretrained(tmp_path, max_shard_size="40KB")  # type: ignore[operator]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_equal(
        stages_of(entry.model, entry.example(), str(tmp_path), stages=3),
        every_tensor(real),
    )


def test_torch_shards_with_an_index(tmp_path: Path):
    real = linear()
    state = real.state_dict()
    for number in "01":
        part = {k: v for k, v in state.items() if k.startswith(number)}
        torch.save(part, tmp_path / f"pytorch_model-{number}.bin")
    index = {key: f"pytorch_model-{key[0]}.bin" for key in state}
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": index})
    )
    assert_equal(stages_of(linear, X, tmp_path), every_tensor(real))


def test_values_are_cast_to_what_the_model_declares(tmp_path: Path):
    real = linear()
    save_file(real.state_dict(), tmp_path / "model.safetensors")
    found = stages_of(lambda: linear().half(), X.half(), tmp_path)
    assert_equal(found, every_tensor(real.half()))


def test_a_tensor_larger_than_what_is_mapped_at_a_time(tmp_path: Path):
    real = nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500))
    save_file(real.state_dict(), tmp_path / "model.safetensors")
    found = stages_of(
        lambda: nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500)),
        torch.ones(2, 1500),
        tmp_path,
    )
    assert_equal(found, every_tensor(real))


def test_a_tensor_saved_transposed(tmp_path: Path):
    state = {k: v.clone() for k, v in linear().state_dict().items()}
    state["0.weight"] = state["0.weight"].T
    torch.save(state, tmp_path / "w.pt")
    assert_equal(stages_of(linear, X, tmp_path / "w.pt"), state)


# -- names ---------------------------------------------------------------------------


def gpt2(kind: str) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16
    )
    model: nn.Module = getattr(transformers, kind)(config)
    return model


IDS = {"input_ids": torch.ones(2, 8, dtype=torch.long)}


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [("GPT2Model", "GPT2LMHeadModel"), ("GPT2LMHeadModel", "GPT2Model")],
)
def test_a_base_models_files_and_a_model_with_a_head(
    saved: str, wanted: str, tmp_path: Path
):
    gpt2(saved).save_pretrained(tmp_path)  # type: ignore[operator]
    import transformers

    loaded = getattr(transformers, wanted).from_pretrained(tmp_path)
    found = stages_of(functools.partial(gpt2, wanted), IDS, tmp_path)
    assert_equal(found, every_tensor(loaded))


def test_a_tie_of_which_the_file_holds_the_second_name(tmp_path: Path):
    real = gpt2("GPT2LMHeadModel")
    state = real.state_dict()
    del state["transformer.wte.weight"]
    torch.save(state, tmp_path / "w.bin")
    found = stages_of(functools.partial(gpt2, "GPT2LMHeadModel"), IDS, tmp_path)
    assert_equal(found, every_tensor(real))


def test_experts_that_are_stored_one_by_one(tmp_path: Path):
    """Hugging Face's library makes one parameter of them; so do we, by its rules."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=24, num_local_experts=12,
    )  # fmt: skip
    real = MixtralForCausalLM(config)
    real.save_pretrained(tmp_path)
    text = (tmp_path / "model.safetensors").read_bytes()[:9000].decode(errors="ignore")
    assert "experts.10.w1" in text, "they are stored as one: nothing is tested"
    found = stages_of(lambda: MixtralForCausalLM(config), IDS, tmp_path)
    assert_equal(found, every_tensor(real))


def test_names_of_a_wrapped_and_compiled_model(tmp_path: Path):
    real = linear()
    state = {f"module._orig_mod.{k}": v for k, v in real.state_dict().items()}
    torch.save({"model": state}, tmp_path / "w.pt")
    assert_equal(stages_of(linear, X, tmp_path), every_tensor(real))


def test_what_the_files_hold_besides_is_told(tmp_path: Path, caplog):
    state = linear().state_dict() | {"head.weight": torch.ones(3)}
    save_file(state, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        stages_of(linear, X, tmp_path)
    assert "holds 1 tensors that Sequential has no place for: head.weight" in (
        caplog.text
    )


def test_what_no_segment_holds_is_there_for_checkpoints(tmp_path: Path):
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = linear()
            self.pooler = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    real = Unused()
    save_file(real.double().state_dict(), tmp_path / "model.safetensors")
    graph = capture(on_meta(Unused), X)
    given = weighted(graph, emit(graph, two_stages(graph, "layers.0@0")), tmp_path)
    own = {"pooler.weight": graph.model.get_parameter("pooler.weight")}
    found = given.unplaced(own)["pooler.weight"]
    assert torch.equal(found, real.pooler.weight.detach().float())


# -- buffers that no file holds -------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, persistent: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.fc(x))) * self.table


class Resetting(Scaled):
    def reset_parameters(self) -> None:
        self.table.copy_(torch.arange(4.0))  # type: ignore[operator]


def test_a_buffer_that_no_file_holds_is_made_by_its_modules_rule(tmp_path: Path):
    real = Resetting()
    torch.save(real.state_dict(), tmp_path / "w.pt")
    assert_equal(stages_of(Resetting, X, tmp_path, stages=1), every_tensor(real))


def test_a_buffer_that_has_its_values_keeps_them(tmp_path: Path):
    torch.save(Scaled().state_dict(), tmp_path / "w.pt")
    model = on_meta(Scaled)
    model.table = torch.arange(4.0) * 2
    (segment,) = build(capture(model, X), tmp_path, 1)
    held = segment.get_buffer("table")
    assert torch.equal(held, model.table)
    assert held is not model.table


# -- what is refused -----------------------------------------------------------------

Spoil = Callable[[Path], None]


def plain(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in linear().state_dict().items()}


def missing(folder: Path) -> None:
    state = plain(folder)
    del state["1.weight"], state["0.bias"]
    save_file(state, folder / "model.safetensors")


def other_shape(folder: Path) -> None:
    state = plain(folder) | {"1.weight": torch.ones(5, 4)}
    save_file(state, folder / "model.safetensors")


def quantised(folder: Path) -> None:
    state = plain(folder) | {"1.weight": torch.ones(4, 4, dtype=torch.int8)}
    save_file(state, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    save_file(plain(folder), folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-20])


def shard_cut_short(folder: Path) -> None:
    save_shards(linear(), folder)
    content = (folder / "part-1.safetensors").read_bytes()
    (folder / "part-1.safetensors").write_bytes(content[:-4])


def torch_cut_short(folder: Path) -> None:
    torch.save(plain(folder), folder / "w.pt")
    content = (folder / "w.pt").read_bytes()
    (folder / "w.pt").write_bytes(content[: len(content) // 2])


def no_shard(folder: Path) -> None:
    save_shards(linear(), folder)
    (folder / "part-2.safetensors").unlink()


def index_is_wrong(folder: Path) -> None:
    save_shards(linear(), folder)
    (folder / "part-0.safetensors").write_bytes(
        (folder / "part-1.safetensors").read_bytes()
    )


def index_is_no_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[1, 2]")


def several(folder: Path) -> None:
    for name in ("a", "b"):
        save_file(plain(folder), folder / f"{name}.safetensors")


def empty(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def code(folder: Path) -> None:
    torch.save(linear(), folder / "w.pt")


def no_state(folder: Path) -> None:
    torch.save({"epoch": 3}, folder / "w.pt")


def from_meta(folder: Path) -> None:
    torch.save(on_meta(linear).state_dict(), folder / "w.pt")


def old_format(folder: Path) -> None:
    torch.save(plain(folder), folder / "w.pt", _use_new_zipfile_serialization=False)


REFUSED: list[tuple[Spoil, str]] = [
    (missing, r"does not have parameter '0.bias', parameter '1.weight'; it has 0.wei"),
    (other_shape, r"'1.weight' has shape \(4, 4\), .*1.weight of .*has \(5, 4\)"),
    (quantised, r"'1.weight' is torch.float32, .*model.safetensors is torch.int8"),
    (cut_short, r"cannot read its header from .*model.safetensors"),
    (shard_cut_short, r"cannot read '0.bias' from .*part-1.safetensors"),
    (torch_cut_short, r"cannot read its state dict from .*w.pt"),
    (no_shard, r"says that '1.weight' is in part-2.safetensors, and there is no such"),
    (index_is_wrong, r"cannot read '0.weight' from .*part-0.safetensors"),
    (index_is_no_index, r"index.json is no index of weights"),
    (several, r"several files of weights and no index: a.safetensors, b.safetensors"),
    (empty, r"holds no weights: there is none of"),
    (code, r"w.pt holds more than tensors"),
    (no_state, r"holds no state dict, but a dict with epoch"),
    (from_meta, r"has no values for '0.(bias|weight)': it was on meta"),
    (old_format, r"cannot read its state dict from .*w.pt .*mmap"),
]


@pytest.mark.parametrize(
    ("spoil", "message"), REFUSED, ids=[spoil.__name__ for spoil, _ in REFUSED]
)
def test_files_that_cannot_be_used(spoil: Spoil, message: str, tmp_path: Path):
    spoil(tmp_path)
    with pytest.raises(WeightsError, match=message) as refused:
        stages_of(linear, X, tmp_path)
    assert refused.value.hint


def test_a_buffer_without_file_and_rule_is_named(tmp_path: Path):
    torch.save(Scaled().state_dict(), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="buffer 'table' of Scaled itself"):
        stages_of(Scaled, X, tmp_path, stages=1)


def test_weights_that_are_views_of_one_memory_are_refused(tmp_path: Path):
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(2, 4)
            self.a, self.b = nn.Parameter(whole[0]), nn.Parameter(whole[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * self.a) * self.b

    torch.save(Views().state_dict(), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="'a' and parameter 'b' are views of one"):
        stages_of(Views, X, tmp_path, stages=1)


@pytest.mark.parametrize("given", ["no/such/place", "org/never-downloaded"])
def test_a_place_that_is_not_there(given: str):
    with pytest.raises(WeightsError, match=f"there is no file or folder '{given}'"):
        stages_of(linear, X, given)


def test_a_model_of_the_hub_that_was_downloaded(tmp_path: Path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--org--tiny"
    (cache / "snapshots" / "c0ffee").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("c0ffee")
    real = linear()
    save_file(real.state_dict(), cache / "snapshots" / "c0ffee" / "model.safetensors")
    assert_equal(stages_of(linear, X, "org/tiny"), every_tensor(real))


def test_another_kind_of_argument():
    with pytest.raises(OptionError, match="weights is a OrderedDict"):
        stages_of(linear, X, linear().state_dict())
