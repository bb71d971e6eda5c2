"""What is fed to models of transformers, by their configurations alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from partitioner.errors import TargetError
from partitioner.targets import HuggingFaceOptions, Target, open_target
from tests.targets.hugging_face import write


def load(folder: Path, name: str, *, weights: bool = False, **options: Any) -> Target:
    chosen = HuggingFaceOptions(**options)
    place = str(write(folder, name))
    with open_target(place, options=chosen, weights=weights) as target:
        return target


def shapes(target: Target) -> dict[str, tuple[int, ...]]:
    inputs = target.example_inputs
    tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor)}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("LlamaForCausalLM", {}, {"input_ids": (1, 24), "labels": (1, 24)}),
        (
            "GPT2LMHeadModel",
            {"micro_batch": 3, "seq_len": 7},
            {"input_ids": (3, 7), "labels": (3, 7)},
        ),
        # RoBERTa's positions begin after the padding's own, which is 1.
        (
            "RobertaForTokenClassification",
            {},
            {"input_ids": (1, 22), "labels": (1, 22)},
        ),
        (
            "BertForSequenceClassification",
            {"micro_batch": 2},
            {"input_ids": (2, 24), "labels": (2,)},
        ),
        (
            "BertForQuestionAnswering",
            {},
            {"input_ids": (1, 24), "start_positions": (1,), "end_positions": (1,)},
        ),
        (
            "BertForMultipleChoice",
            {},
            {"input_ids": (1, 2, 24), "labels": (1,)},
        ),
        ("BertModel", {}, {"input_ids": (1, 24)}),
        (
            "T5ForConditionalGeneration",
            {},
            {
                "input_ids": (1, 512),
                "decoder_input_ids": (1, 512),
                "labels": (1, 512),
            },
        ),
        (
            "ViTForImageClassification",
            {"micro_batch": 2},
            {"pixel_values": (2, 3, 32, 32), "labels": (2,)},
        ),
        (
            "ResNetForImageClassification",
            {"image_size": 64},
            {"pixel_values": (1, 3, 64, 64), "labels": (1,)},
        ),
        (
            "VideoMAEForVideoClassification",
            {},
            {"pixel_values": (1, 4, 3, 32, 32), "labels": (1,)},
        ),
        ("CLIPModel", {}, {"input_ids": (1, 24), "pixel_values": (1, 3, 32, 32)}),
        (
            "WhisperForConditionalGeneration",
            {},
            {
                "input_features": (1, 8, 40),
                "decoder_input_ids": (1, 12),
                "labels": (1, 12),
            },
        ),
        (
            "Speech2TextForConditionalGeneration",
            {"seq_len": 5},
            {
                "input_features": (1, 20, 8),
                "decoder_input_ids": (1, 5),
                "labels": (1, 5),
            },
        ),
        ("Wav2Vec2ForCTC", {"seq_len": 4000}, {"input_values": (1, 4000)}),
        (
            "ASTForAudioClassification",
            {},
            {"input_values": (1, 64, 32), "labels": (1,)},
        ),
    ],
)
def test_inputs_of_each_family(
    tmp_path: Path, name: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert shapes(load(tmp_path, name, **options)) == expected


@pytest.mark.parametrize(
    ("name", "returned"),
    [
        ("GPT2LMHeadModel", "loss"),
        ("RobertaForTokenClassification", "loss"),
        ("BertForSequenceClassification", "loss"),
        ("BertForQuestionAnswering", "loss"),
        ("BertForMultipleChoice", "loss"),
        ("BertModel", "last_hidden_state"),
        ("ViTForImageClassification", "loss"),
        ("ResNetForImageClassification", "loss"),
        ("VideoMAEForVideoClassification", "loss"),
        ("CLIPModel", "loss"),
        ("WhisperForConditionalGeneration", "loss"),
        ("Speech2TextForConditionalGeneration", "loss"),
        ("ASTForAudioClassification", "loss"),
    ],
)
def test_the_model_itself_runs_on_them(
    tmp_path: Path, name: str, returned: str
) -> None:
    target = load(tmp_path, name, weights=True, micro_batch=2)
    output = target.model(**target.example_inputs)
    assert torch.isfinite(output[returned]).all()


def test_no_special_token_is_drawn(tmp_path: Path) -> None:
    target = load(tmp_path, "GPT2LMHeadModel", micro_batch=50)
    ids = target.example_inputs["input_ids"]
    assert {0, 1, 2}.isdisjoint(ids.flatten().tolist())
    assert ids.max() < 99
    assert len(ids.unique()) > 50


def test_floating_inputs_have_the_model_s_dtype(tmp_path: Path) -> None:
    folder = write(tmp_path, "ViTForImageClassification")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16"}))
    with open_target(str(folder)) as target:
        assert next(target.model.parameters()).dtype is torch.bfloat16
        pixels = target.example_inputs["pixel_values"]
        assert pixels.dtype is torch.bfloat16


def test_what_was_assumed_is_told(tmp_path: Path) -> None:
    notes = load(tmp_path, "LlamaForCausalLM").notes
    assert notes == (
        "model: LlamaForCausalLM, from the architectures in config.json, with no "
        "weights",
        "example inputs, made from the configuration: input_ids 1 × 24, labels "
        "1 × 24; no padding",
        "loss: the model's own, from labels",
        "assumed for them: --micro-batch 1, --seq-len 24 (the model's positions)",
    )
    sizes: dict[str, Any] = {"micro_batch": 2, "seq_len": 8}
    notes = load(tmp_path, "LlamaForCausalLM", **sizes).notes
    assert not any(note.startswith("assumed") for note in notes)


def test_a_loss_that_is_not_priced_is_told(tmp_path: Path) -> None:
    notes = load(tmp_path, "Wav2Vec2ForCTC").notes
    assert (
        "loss: none is priced, as the labels of Wav2Vec2ForCTC are not known here"
        in (notes)
    )


@pytest.mark.parametrize(
    ("name", "options", "message", "hint"),
    [
        (
            "LlamaForCausalLM",
            {"seq_len": 25},
            "--seq-len 25 is longer than LlamaForCausalLM's positions, 24",
            "at most --seq-len 24",
        ),
        (
            "RobertaForTokenClassification",
            {"seq_len": 23},
            "--seq-len 23 is longer than RobertaForTokenClassification's positions, 22",
            "at most --seq-len 22",
        ),
        (
            "WhisperForConditionalGeneration",
            {"seq_len": 13},
            "--seq-len 13 is longer than WhisperForConditionalGeneration's positions",
            "at most --seq-len 12",
        ),
        (
            "ViTForImageClassification",
            {"image_size": 40},
            "an image of 40 pixels is no multiple of ViTForImageClassification's "
            "patches of 16",
            "--image-size 32",
        ),
        (
            "ViTForImageClassification",
            {"seq_len": 4},
            "--seq-len has no meaning for ViTForImageClassification",
            "leave --seq-len out",
        ),
        (
            "LlamaForCausalLM",
            {"image_size": 32},
            "--image-size has no meaning for LlamaForCausalLM",
            "leave --image-size out",
        ),
        (
            "PatchTSTForPrediction",
            {},
            "no example inputs for PatchTSTForPrediction: its first input, past_values",
            "write a model.py",
        ),
    ],
)
def test_sizes_that_cannot_be(
    tmp_path: Path, name: str, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(TargetError) as caught:
        load(tmp_path, name, **options)
    assert message in caught.value.message
    assert hint in caught.value.hint
