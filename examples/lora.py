"""Fine-tune low-rank adapters (peft) on a Llama whose own weights are frozen.

    torchrun --nproc-per-node 2 examples/lora.py

Frozen weights have no gradient, no optimizer state and no share in the plan's memory
beyond themselves. Every stage must train something: adapters in every layer do.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from training import parser, train
from transformers import LlamaConfig, LlamaForCausalLM

from partitioner import partition

MICRO_BATCH, MICRO_BATCHES, LENGTH, VOCABULARY = 4, 4, 32, 128


def build_model() -> PeftModel:
    """A small Llama with adapters in every layer; the same on every process."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    adapters = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(LlamaForCausalLM(config), adapters)


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Texts that count up from one of four tokens."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(0, 4, (count, 1), generator=generator)
    tokens = (starts + torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": each, "labels": each} for each in tokens]


def main() -> None:
    """Train this process's stage and print the losses."""
    options = parser(__doc__).parse_args()

    data = sentences(256)
    plan = partition(
        build_model(),
        options.stages,
        example_inputs=torch.utils.data.default_collate(data[:MICRO_BATCH]),
        micro_batches=MICRO_BATCHES,
    )
    engine, *_ = plan.initialize(
        groups=[{"params": "*lora_B*", "lr": 1e-1}],  # LoRA+ (Hayou et al., 2024)
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-2),
        config={"steps_per_print": 10**9},
    )
    train(engine, data, options.steps)


if __name__ == "__main__":
    main()
