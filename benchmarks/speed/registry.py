"""The models by name."""

from __future__ import annotations

from benchmarks.speed.bert import bert_large
from benchmarks.speed.causal import gemma_2b, gpt2_medium, llama_1b, llama_7b
from benchmarks.speed.images import resnet_152, vit_large
from benchmarks.speed.t5 import t5_large
from benchmarks.speed.unet import sdxl_unet

__all__ = ["WORKLOADS"]

WORKLOADS = {
    "llama-1b": llama_1b,
    "gemma-2b": gemma_2b,
    "resnet-152": resnet_152,
    "sdxl-unet": sdxl_unet,
    "gpt2-medium": gpt2_medium,
    "t5-large": t5_large,
    "vit-large": vit_large,
    "llama-7b": llama_7b,
    "bert-large": bert_large,
}
