"""Fine-tune a Hugging Face classifier whose weights lie in a folder of safetensors.

    python examples/finetune_classifier.py --folder bert --make
    torchrun --nproc-per-node 2 examples/finetune_classifier.py --folder bert --runs out

The model is built without weights; each process reads those of its own stage. After it

    partitioner export out -o tuned

writes a folder that ``from_pretrained`` loads.
"""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed.utils import RepeatingLoader
from training import leave, parser, steps
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig

from partitioner import partition

MICRO_BATCH, MICRO_BATCHES, LENGTH = 8, 4, 16


def samples(vocabulary: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of random words, positive if the first word is of the upper half."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (256, LENGTH), generator=generator)
    labels = (ids[:, 0] > vocabulary // 2).long()
    return [
        {"input_ids": a, "attention_mask": torch.ones_like(a), "labels": b}
        for a, b in zip(ids, labels, strict=True)
    ]


def write_small_bert(folder: Path) -> None:
    """Write a small BERT with random weights."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=128, vocab_size=200, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def main() -> None:
    """Fine-tune, and save a checkpoint."""
    flags = parser(__doc__)
    flags.add_argument("--folder", type=Path, required=True, help="of the model")
    flags.add_argument("--make", action="store_true", help="write a small BERT there")
    flags.add_argument("--runs", type=Path, help="folder of checkpoints")
    options = flags.parse_args()
    if options.make:
        write_small_bert(options.folder)
        return

    config = AutoConfig.from_pretrained(options.folder)
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    data = samples(config.vocab_size)
    batch = torch.utils.data.default_collate(data[:MICRO_BATCH])
    plan = partition(
        model, options.stages, example_inputs=batch, micro_batches=MICRO_BATCHES
    )
    engine, *_ = plan.initialize(
        weights=options.folder,
        groups=[{"params": "classifier.*", "lr": 1e-2}],
        config={
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "steps_per_print": 10**9,
        },
    )
    loader = engine.dataloader(data, seed=0)
    for _ in steps(engine, RepeatingLoader(loader), options.steps):
        pass
    if options.runs:
        engine.save_checkpoint(options.runs)
    leave(engine)


if __name__ == "__main__":
    main()
