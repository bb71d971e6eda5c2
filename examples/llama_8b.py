"""A Llama of 8B size that is never allocated: a target for the command line.

partitioner inspect examples/llama_8b.py --stages 4 --device h100 --dtype bfloat16
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

with torch.device("meta"):
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            max_position_embeddings=8192,
            dtype="bfloat16",
        )
    )

example_inputs = {"input_ids": torch.zeros(1, 4096, dtype=torch.long)}
