"""Train a T5 to translate between two made-up languages, sentences of any length.

    torchrun --nproc-per-node 2 examples/t5_translate.py

Encoder and decoder are cut like any other model: the encoder's result is relayed to all
stages of the decoder. Micro-batches are padded to their longest sentence, so that they
have different shapes, and the loss is the mean over all words of a step.
"""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence
from training import parser, train
from transformers import T5Config, T5ForConditionalGeneration

from partitioner import partition

MICRO_BATCH, MICRO_BATCHES = 8, 4
WORDS, LONGEST = 20, 8
PADDING, END, FIRST = 0, 1, 2
"""Tokens; words of one language begin at FIRST, those of the other after them."""
IGNORED = -100

Sample = dict[str, torch.Tensor]


def build_model() -> T5ForConditionalGeneration:
    """A small T5; the same on every process."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=FIRST + 2 * WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2,
        num_heads=4, dropout_rate=0.0, decoder_start_token_id=PADDING,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def sentences(count: int) -> list[Sample]:
    """Random sentences; the other language has a word for each, the last one first."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, LONGEST + 1, (count,), generator=generator).tolist()
    end = torch.tensor([END])
    samples = []
    for length in lengths:
        words = torch.randint(FIRST, FIRST + WORDS, (length,), generator=generator)
        samples.append(
            {
                "input_ids": torch.cat([words, end]),
                "labels": torch.cat([words.flip(0) + WORDS, end]),
            }
        )
    return samples


def padded(samples: list[Sample]) -> Sample:
    """Make a micro-batch: what a sequence-to-sequence collator does."""
    ids = [sample["input_ids"] for sample in samples]
    labels = [sample["labels"] for sample in samples]
    batch = pad_sequence(ids, batch_first=True, padding_value=PADDING)
    return {
        "input_ids": batch,
        "attention_mask": (batch != PADDING).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def main() -> None:
    """Train this process's stage and print the losses."""
    options = parser(__doc__).parse_args()
    data = sentences(256)
    plan = partition(
        build_model(),
        options.stages,
        example_inputs=padded(data[:MICRO_BATCH]),
        micro_batches=MICRO_BATCHES,
    )
    engine, *_ = plan.initialize(
        token_weighted=True,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3),
        config={"steps_per_print": 10**9},
    )
    train(engine, data, options.steps, collate_fn=padded)


if __name__ == "__main__":
    main()
