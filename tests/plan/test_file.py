from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from partitioner import (
    PartitionerError,
    Plan,
    PlanMismatchError,
    measure_model,
    partition,
)
from tests.models import MODELS, gpt2
from tests.plan.test_plan import plan_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan_of("gpt2", 2, "all").save(path)
    return path


def edited(path, tmp_path, change) -> Any:
    content = json.loads(path.read_text())
    change(content)
    target = tmp_path / "edited.json"
    target.write_text(json.dumps(content))
    return target


def test_a_plan_comes_back_as_it_was(saved):
    plan = plan_of("gpt2", 2, "all")
    loaded = Plan.load(saved, MODELS["gpt2"].model(seed=7))

    assert loaded.assignment.stage_of == plan.assignment.stage_of
    assert loaded.assignment.recomputed == plan.assignment.recomputed
    assert loaded.to_dict() == plan.to_dict()
    assert loaded.verify().ok


def test_all_kinds_of_arguments_come_back(tmp_path):
    entry = MODELS["bert"]
    example = {**entry.example(), "return_dict": False, "token_type_ids": None}
    plan = partition(entry.model(), 2, example_inputs=example, device="cpu")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json", entry.model()).graph.example[1].keys() == (
        example.keys()
    )


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("place", ["channels last", "transposed"])
def test_inputs_come_back_in_their_order_in_memory(tmp_path, place, measured):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 5)
    )
    example = {
        "channels last": torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(2, 3, 5, 6).transpose(2, 3),
    }[place]
    timings = measure_model(model, example_inputs=example) if measured else None
    plan = partition(
        model, 2, example_inputs=example, device="cpu", measurements=timings
    )
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", model)
    assert loaded.to_dict() == plan.to_dict()
    assert loaded.verify().ok


def test_a_plan_for_another_model_names_the_difference(saved):
    with pytest.raises(PlanMismatchError) as caught:
        Plan.load(saved, gpt2(0.1, layers=3))
    assert "transformer.h.3" in caught.value.message

    with pytest.raises(PlanMismatchError, match="another model"):
        Plan.load(saved, MODELS["bert"].model())


def test_weights_of_another_shape_are_another_model(saved):
    from transformers import GPT2Config, GPT2LMHeadModel

    config: GPT2Config = MODELS["gpt2"].model().config
    config.n_inner = 96
    with pytest.raises(PlanMismatchError):
        Plan.load(saved, GPT2LMHeadModel(config))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file(saved, tmp_path, share):
    text = saved.read_text()
    (tmp_path / "cut.json").write_text(text[: int(len(text) * share)])
    with pytest.raises(PlanMismatchError, match="JSON"):
        Plan.load(tmp_path / "cut.json", MODELS["gpt2"].model())


@pytest.mark.parametrize("text", ["[]", "{}", '{"kind": "recipe"}', '"plan"'])
def test_a_file_of_another_kind(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(PlanMismatchError, match="no plan"):
        Plan.load(tmp_path / "other.json", MODELS["gpt2"].model())


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(PlanMismatchError, match=r"none\.json"):
        Plan.load(tmp_path / "none.json", MODELS["gpt2"].model())


def _another_version(content):
    content["schema_version"] = 99


def _no_stages(content):
    del content["options"]["stages"]


def _text_for_a_number(content):
    content["options"]["micro_batches"] = "__import__('os')"


def _unit_is_missing(content):
    content["units"].popitem()


def _backwards(content):
    first = next(iter(content["units"]))
    content["units"][first] = 1


def _stage_out_of_range(content):
    first = next(iter(content["units"]))
    content["units"][first] = 5


def _unknown_dtype(content):
    content["example"]["kwargs"]["input_ids"]["tensor"]["dtype"] = "save"


def _endless(content):
    first = next(iter(content["units"]))
    content["units"][first] = float("inf")


def _negative_shape(content):
    content["example"]["kwargs"]["input_ids"]["tensor"]["shape"] = [-1, 16]


def _order_of_other_dimensions(content):
    content["example"]["kwargs"]["input_ids"]["tensor"]["order"] = [0, 2]


def _no_mapping(content):
    content["units"] = [1, 2]


def _unknown_profile_field(content):
    content["profile"]["colour"] = "green"


def _better_than_it_is(content):
    content["objective_s"] /= 2


@pytest.mark.parametrize(
    "change",
    [
        _endless,
        _negative_shape,
        _order_of_other_dimensions,
        _no_mapping,
        _unknown_profile_field,
        _better_than_it_is,
        _another_version,
        _no_stages,
        _text_for_a_number,
        _unit_is_missing,
        _backwards,
        _stage_out_of_range,
        _unknown_dtype,
    ],
)
def test_an_edited_file_is_checked(saved, tmp_path, change):
    path = edited(saved, tmp_path, change)
    with pytest.raises(PlanMismatchError):
        Plan.load(path, MODELS["gpt2"].model())


def test_nothing_is_lost_when_a_plan_cannot_be_written(saved, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("precious")
    entry = MODELS["gpt2"]
    example = {**entry.example(), "output_hidden_states": None}
    plan = partition(entry.model(), 2, example_inputs=example, device="cpu")
    plan.graph.example[1]["output_hidden_states"] = object()  # type: ignore[index]
    with pytest.raises(PartitionerError, match="object"):
        plan.save(path)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]

    with pytest.raises(PartitionerError, match="nowhere"):
        plan_of("gpt2", 2).save(tmp_path / "nowhere" / "plan.json")


def test_loading_runs_on_zeros_of_the_examples_shape(saved):
    loaded = Plan.load(saved, MODELS["gpt2"].model())
    ids = loaded.graph.example[1]["input_ids"]
    assert torch.equal(ids, torch.zeros(2, 16, dtype=torch.long))


def test_a_folder_is_no_plan_file(tmp_path):
    with pytest.raises(PlanMismatchError, match="cannot be read"):
        Plan.load(tmp_path, MODELS["gpt2"].model())


def test_a_folder_that_is_missing(tmp_path):
    plan = plan_of("gpt2", 2, "all")
    with pytest.raises(PartitionerError, match="could not be written") as caught:
        plan.save(tmp_path / "none" / "plan.json")
    assert "folder" in caught.value.hint


def test_other_users_may_read_what_the_umask_allows(tmp_path):
    plan = plan_of("gpt2", 2, "all")
    path, reference = tmp_path / "plan.json", tmp_path / "reference"
    reference.touch()
    plan.save(path)
    assert path.stat().st_mode == reference.stat().st_mode
    assert {item.name for item in tmp_path.iterdir()} == {path.name, reference.name}
