"""Train GPT-2 as a DeepSpeed pipeline: what a training script looks like.

    torchrun --nproc-per-node 2 examples/gpt2_train.py

The model is the library's own, untouched. Runs on GPUs (NCCL) or on the CPU (gloo).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from training import leave, parser, steps
from transformers import GPT2Config, GPT2LMHeadModel

from partitioner import partition

if TYPE_CHECKING:
    from collections.abc import Iterator

MICRO_BATCHES = 4
SAMPLES, LENGTH, VOCABULARY = 4, 64, 1000


def build_model() -> GPT2LMHeadModel:
    """A small GPT-2 with random weights, the same on every process."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=8, n_embd=128, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=1, eos_token_id=2, loss_type="ForCausalLM",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def batches(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches as a Hugging Face collator makes them; the same for every reader.

    The text counts up from a random token, so that there is something to learn.
    """
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps * MICRO_BATCHES):
        start = torch.randint(0, VOCABULARY, (SAMPLES, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH)) % VOCABULARY
        yield {"input_ids": tokens, "labels": tokens}


example_inputs = next(batches(1))


def main() -> None:
    """Train this process's stage and print the losses."""
    flags = parser(__doc__, steps=10)
    flags.add_argument("--losses", type=Path, help="write the losses as JSON")
    options = flags.parse_args()

    plan = partition(
        build_model(),
        options.stages,
        example_inputs=example_inputs,
        micro_batches=MICRO_BATCHES,
    )
    # The model returns its own loss; otherwise: plan.initialize(loss_fn).
    engine, *_ = plan.initialize(config={"steps_per_print": 10**9})

    losses = list(steps(engine, batches(options.steps), options.steps))
    if engine.global_rank == 0 and options.losses:
        options.losses.write_text(json.dumps(losses))
    leave(engine)


if __name__ == "__main__":
    main()
