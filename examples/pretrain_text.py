"""Pre-train GPT-2 on a text file, with checkpoints, from where the last run stopped.

    torchrun --nproc-per-node 2 examples/pretrain_text.py book.txt --folder runs/book

Every byte is a token, so nothing is downloaded. Stop it and start it again, also with
another number of processes (``--stages 4``): it goes on at the next batch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed.utils import RepeatingLoader
from torch import nn
from torch.utils.data import Dataset
from training import leave, parser, steps
from transformers import GPT2Config, GPT2LMHeadModel

from partitioner import partition

LENGTH = 64
MICRO_BATCH, MICRO_BATCHES = 4, 4


class Bytes(Dataset[dict[str, torch.Tensor]]):
    """A file in pieces of equal length; a causal model shifts the labels itself."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()

    def __len__(self) -> int:
        return len(self._bytes) // LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self._bytes[index * LENGTH : (index + 1) * LENGTH]
        tokens = torch.tensor(list(piece))
        return {"input_ids": tokens, "labels": tokens}


def build_model() -> GPT2LMHeadModel:
    """GPT-2, small; the same on every process."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_embd=64, n_head=4, n_positions=LENGTH, vocab_size=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def main() -> None:
    """Train, save, and go on."""
    flags = parser(__doc__, steps=100)
    flags.add_argument("text", type=Path)
    flags.add_argument("--folder", type=Path, required=True, help="of checkpoints")
    flags.add_argument("--save-every", type=int, default=50)
    options = flags.parse_args()

    tokens = torch.zeros(MICRO_BATCH, LENGTH, dtype=torch.long)
    plan = partition(
        build_model(),
        options.stages,
        example_inputs={"input_ids": tokens, "labels": tokens},
        micro_batches=MICRO_BATCHES,
    )
    engine, *_ = plan.initialize(
        groups=[{"params": ["*.bias", nn.LayerNorm], "weight_decay": 0.0}],
        config={"gradient_clipping": 1.0, "steps_per_print": 10**9},
    )
    loader = engine.dataloader(Bytes(options.text), seed=0)
    engine.attach("text", loader)
    engine.load_checkpoint(options.folder)  # does nothing where nothing was saved

    for _ in steps(engine, RepeatingLoader(loader), options.steps):
        if engine.global_steps % options.save_every == 0:
            engine.save_checkpoint(options.folder)
    engine.save_checkpoint(options.folder)
    leave(engine)


if __name__ == "__main__":
    main()
