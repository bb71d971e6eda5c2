"""The models by name."""

from __future__ import annotations

from benchmarks.speed.causal import gemma_2b, gpt2_medium, llama_1b

__all__ = ["WORKLOADS"]

WORKLOADS = {
    "llama-1b": llama_1b,
    "gemma-2b": gemma_2b,
    "gpt2-medium": gpt2_medium,
}
