"""What a class of transformers takes as labels, by what its name ends in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from partitioner.targets.hf_facts import Facts

__all__ = ["labels_for"]

Inputs = dict[str, Any]


def labels_for(facts: Facts, inputs: Mapping[str, Any]) -> tuple[Inputs, str]:
    """Return what makes a model compute its loss, and a sentence about it.

    Args:
        facts: The model.
        inputs: The other inputs of the micro-batch.
    """
    if "return_loss" in inputs:
        return {}, "loss: the model's own, by return_loss=True"
    for endings, make in _MAKERS.items():
        if facts.name.endswith(endings):
            labels = make(facts, dict(inputs))
            if labels and all(map(facts.takes, labels)):
                return labels, f"loss: the model's own, from {' and '.join(labels)}"
    return {}, f"loss: none is priced, as the labels of {facts.name} are not known here"


def _written(_facts: Facts, inputs: Inputs) -> Inputs:
    """Label each token that is written: those of the decoder, if there is one."""
    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    return {} if tokens is None else {"labels": tokens.clone()}


def _tagged(_facts: Facts, inputs: Inputs) -> Inputs:
    return {"labels": torch.zeros_like(inputs["input_ids"])}


def _classified(facts: Facts, inputs: Inputs) -> Inputs:
    samples, classes = _samples(inputs), facts.config.num_labels
    kind = getattr(facts.config, "problem_type", None)
    if kind == "multi_label_classification":
        return {"labels": torch.zeros(samples, classes, dtype=facts.dtype)}
    if kind == "regression" or (kind is None and classes == 1):
        return {"labels": torch.zeros(samples, dtype=facts.dtype)}
    return {"labels": torch.zeros(samples, dtype=torch.long)}


def _chosen(_facts: Facts, inputs: Inputs) -> Inputs:
    return {"labels": torch.zeros(_samples(inputs), dtype=torch.long)}


def _answered(_facts: Facts, inputs: Inputs) -> Inputs:
    names = ("start_positions", "end_positions")
    return {name: torch.zeros(_samples(inputs), dtype=torch.long) for name in names}


def _segmented(_facts: Facts, inputs: Inputs) -> Inputs:
    pixels: Tensor = inputs["pixel_values"]
    shape = (len(pixels), *pixels.shape[-2:])
    return {"labels": torch.zeros(shape, dtype=torch.long)}


def _samples(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


_MAKERS: dict[tuple[str, ...], Callable[[Facts, Inputs], Inputs]] = {
    (
        "ForCausalLM",
        "LMHeadModel",
        "ForMaskedLM",
        "ForConditionalGeneration",
        "EncoderDecoderModel",
    ): _written,
    ("ForTokenClassification",): _tagged,
    (
        "ForSequenceClassification",
        "ForImageClassification",
        "ForAudioClassification",
        "ForVideoClassification",
    ): _classified,
    ("ForMultipleChoice", "ForNextSentencePrediction"): _chosen,
    ("ForQuestionAnswering",): _answered,
    ("ForSemanticSegmentation",): _segmented,
}
