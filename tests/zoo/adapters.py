"""peft: low-rank adapters on a frozen Llama."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.zoo.entry import VOCABULARY, Entry, Missing, Transformer, padding, tokens
from tests.zoo.libraries import needs

__all__ = ["ENTRIES"]

PROJECTIONS = ["q_proj", "v_proj", "down_proj"]


def _base() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def _settings(rank: int, **more: Any) -> Any:
    from peft import LoraConfig

    # Else the second factor begins at zero, and no gradient reaches the first.
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        target_modules=PROJECTIONS,
        lora_dropout=0.1,
        init_lora_weights=False,
        **more,
    )


def _one() -> nn.Module:
    from peft import get_peft_model

    return get_peft_model(_base(), _settings(4)).train()


def _two_of_three() -> nn.Module:
    """Three adapters, two of them at work at once."""
    model: Any = _one()
    model.add_adapter("second", _settings(2, use_rslora=True))
    model.add_adapter("idle", _settings(2))
    model.base_model.set_adapter(["default", "second"])
    return model.train()


def _merged() -> nn.Module:
    """The adapters' product added to the weights, which are trained further."""
    model: Any = _one()
    merged: nn.Module = model.merge_and_unload()
    return merged.requires_grad_().train()


def _inputs(samples: int, length: int) -> dict[str, Any]:
    ids = tokens(samples, length)
    mask = padding(samples, length)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def adapted(name: str, build: Any, **more: Any) -> Entry | Missing:
    """An entry for a model that peft has changed."""
    entry = Transformer(name, build, inputs=_inputs, length=14, **more)
    return needs("peft", "LoraConfig", entry)


ENTRIES = (
    adapted("lora on llama", _one),
    adapted("two lora adapters of three", _two_of_three),
    adapted("lora merged into llama", _merged),
)
