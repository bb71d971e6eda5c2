"""transformers: causal language models."""

from __future__ import annotations

from typing import Any

from tests.zoo.entry import (
    VOCABULARY,
    Entry,
    Missing,
    Pretrained,
    padding,
    tokens,
)

__all__ = ["ENTRIES"]

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The names that most configurations share."""
GROUPED = SIZES | {"num_key_value_heads": 2}
"""Two query heads to each key/value head."""
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def lm(
    name: str,
    prefix: str,
    sizes: dict[str, Any] = SIZES,
    *,
    fields: dict[str, Any] | None = None,
    **settings: Any,
) -> Entry | Missing:
    """An entry for ``<prefix>ForCausalLM``.

    Args:
        name: The entry's name.
        prefix: What the classes' names begin with.
        sizes: Settings that are shared with other models.
        fields: Further fields of the entry.
        settings: The configuration's own settings.
    """
    model, config = f"{prefix}ForCausalLM", f"{prefix}Config"
    return Pretrained(name, model, config, sizes | settings, **(fields or {}))


def padded(samples: int, length: int) -> dict[str, Any]:
    return {
        "input_ids": tokens(samples, length),
        "attention_mask": padding(samples, length),
    }


ENTRIES = (
    Pretrained("gpt-2", "GPT2LMHeadModel", "GPT2Config", SIZES | GPT, inputs=padded),
    lm("llama", "Llama", GROUPED, attention_dropout=0.1),
)
