"""transformers: causal language models."""

from __future__ import annotations

from typing import Any

from tests.zoo.entry import (
    ATTENTION,
    MLP,
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
LAYERS = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def lm(
    name: str,
    prefix: str,
    sizes: dict[str, Any] = SIZES,
    *,
    mlp: str = MLP,
    inputs: Any = None,
    fields: dict[str, Any] | None = None,
    **settings: Any,
) -> Entry | Missing:
    """An entry for ``<prefix>ForCausalLM``.

    Args:
        name: The entry's name.
        prefix: What the classes' names begin with.
        sizes: Settings that are shared with other models.
        mlp: Pattern of the modules that do the MLP's work.
        inputs: Takes samples and length, returns the batch; None: tokens alone.
        fields: Further fields of the entry.
        settings: The configuration's own settings.
    """
    more = {"through": (ATTENTION, mlp)} | (fields or {})
    if inputs:
        more["inputs"] = inputs
    model, config = f"{prefix}ForCausalLM", f"{prefix}Config"
    return Pretrained(name, model, config, sizes | settings, **more)


def padded(samples: int, length: int) -> dict[str, Any]:
    return {
        "input_ids": tokens(samples, length),
        "attention_mask": padding(samples, length),
    }


def labelled(samples: int, length: int) -> dict[str, Any]:
    """Padding counts as no target; a labelled batch returns its loss."""
    batch = padded(samples, length)
    ignored = batch["attention_mask"] == 0
    return batch | {"labels": batch["input_ids"].masked_fill(ignored, -100)}


ENTRIES = (
    Pretrained("gpt-2", "GPT2LMHeadModel", "GPT2Config", SIZES | GPT, inputs=padded),
    lm("gpt-neox", "GPTNeoX", attention_dropout=0.1, hidden_dropout=0.1),
    lm("gpt-j", "GPTJ", SIZES | GPT, rotary_dim=4, attn_pdrop=0.1, resid_pdrop=0.1),
    lm("opt", "OPT", ffn_dim=48, attention_dropout=0.1, mlp="fc1$", inputs=padded),
    lm(
        "opt with layer drop",
        "OPT",
        ffn_dim=48,
        layerdrop=0.5,
        fields={
            "through": (),
            "leaves": {"model.decoder": "uses the value of a random number"},
            "heavy_leaf": "Python decides which layers run, by a random number",
        },
    ),
    lm("bloom", "Bloom", n_head=4, hidden_dropout=0.1, inputs=padded),
    lm("falcon", "Falcon", hidden_dropout=0.1, attention_dropout=0.1),
    lm("llama", "Llama", GROUPED, attention_dropout=0.1),
    lm("llama with labels", "Llama", GROUPED, inputs=labelled),
    lm("mistral", "Mistral", GROUPED, sliding_window=4, inputs=padded),
    lm("mixtral", "Mixtral", GROUPED | EXPERTS, mlp="experts$"),
    lm(
        "mixtral with router logits",
        "Mixtral",
        GROUPED | EXPERTS,
        mlp="gate$",
        inputs=labelled,
        output_router_logits=True,
    ),
    lm("qwen3", "Qwen3", GROUPED, head_dim=8, attention_dropout=0.1),
    lm(
        "qwen3-moe",
        "Qwen3Moe",
        GROUPED | EXPERTS,
        mlp="experts$",
        head_dim=8,
        moe_intermediate_size=16,
        mlp_only_layers=[0],
    ),
    Pretrained(
        "gemma-3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GROUPED | {"head_dim": 8, "sliding_window": 4, "layer_types": LAYERS},
        inputs=padded,
    ),
    lm("phi-3", "Phi3", GROUPED, resid_pdrop=0.1, attention_dropout=0.1),
    lm("olmo-2", "Olmo2", GROUPED, attention_dropout=0.1),
    lm(
        "deepseek-v3",
        "DeepseekV3",
        mlp="experts$",
        first_k_dense_replace=1,
        kv_lora_rank=16,
        moe_intermediate_size=16,
        n_group=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        q_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        topk_group=1,
        v_head_dim=8,
    ),
    lm(
        "mamba-2",
        "Mamba2",
        chunk_size=8,
        head_dim=8,
        n_groups=2,
        num_heads=8,
        state_size=8,
        fields={
            "through": ("mixer$",),
            "fixed_length": "rounded in an unknown way",
        },
    ),
    lm(
        "gpt-oss",
        "GptOss",
        GROUPED | EXPERTS,
        mlp="experts$",
        head_dim=8,
        layer_types=LAYERS,
        sliding_window=4,
    ),
)
