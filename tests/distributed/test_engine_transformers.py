"""Hugging Face's collators, models, outputs and router losses through the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.launch import launch
from tests.distributed.scripts import Ran, Script, Step, alone, on_stages

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

VOCABULARY, SPECIAL = 60, ["[PAD]", "[UNK]"]


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
        num_experts_per_tok=2, max_position_embeddings=32, output_router_logits=True,
        router_aux_loss_coef=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.example_input_array = dict(collated(0, rows=3, longest=9))
    return model


def collated(seed: int, rows: int, longest: int) -> Any:
    """Return what the collator for language models makes of texts of unequal length."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(SPECIAL)}
    words |= {f"w{index}": index for index in range(len(SPECIAL), VOCABULARY)}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]")
    generator = torch.Generator().manual_seed(seed)
    lengths = [longest, *torch.randint(3, longest, (rows - 1,), generator=generator)]
    texts = [
        " ".join(
            f"w{number}"
            for number in torch.randint(
                2, VOCABULARY, (int(length),), generator=generator
            )
        )
        for length in lengths
    ]
    keys = {"return_token_type_ids": False}
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return collate([tokenizer(text, **keys) for text in texts])


def steps(_: int) -> list[Step]:
    def batch(seed: int, lengths: tuple[int, ...]) -> list[list[Any]]:
        return [[collated(seed + i, 3, length) for i, length in enumerate(lengths)]]

    outputs = {"return_logits": True}
    return [
        Step(batches=batch(10, (9, 7, 8, 9))),
        Step(batches=batch(20, (12, 5)), train=False, options=outputs),
        Step(batches=batch(30, (6, 6, 6, 6))),
    ]


def own_loss(model: nn.Module, _: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(**batch)
    return output.loss, {"aux_loss": output.aux_loss}


def scripts() -> list[Script]:
    return [Script(build=mixtral, steps=steps, forward=own_loss)]


def run() -> Ran:
    (ran,) = on_stages(scripts(), 2)
    return ran


def test_batches_of_a_collator_train_a_model_with_router_losses():
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast

    (script,) = scripts()
    expected = alone(script)
    first, last = launch(2, run, timeout_s=240.0)
    for ran in (first, last):
        for done, wanted in zip(ran.steps, expected.steps, strict=True):
            assert done.loss == pytest.approx(wanted.loss, rel=1e-5)
            if wanted.norm is not None:
                assert done.norm == pytest.approx(wanted.norm, rel=1e-5)
            assert done.additional == pytest.approx(wanted.additional, rel=1e-5)
        assert ran.steps[0].additional.keys() == {"aux_loss"}
        for name, value in ran.state.items():
            torch.testing.assert_close(
                value, expected.state[name], rtol=1e-5, atol=1e-6
            )
    assert first.steps[1].outputs is None
    for found, wanted in zip(
        last.steps[1].outputs, expected.steps[1].outputs, strict=True
    ):
        assert isinstance(found, MoeCausalLMOutputWithPast)
        torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.aux_loss, wanted.aux_loss)
