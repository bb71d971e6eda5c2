"""What the engine's own behaviour is tested with: losses, evaluation, tokens."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.distributed.scripts import Script, Step

__all__ = ["CASES"]

VOCABULARY, WIDTH = 30, 12
IGNORED = -100


class Tagger(nn.Module):
    """Returns a tuple: logits for each token, and the hidden state."""

    example_input_array: Any = torch.zeros(3, 7, dtype=torch.int64)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.blocks(self.embed(ids))
        return self.head(hidden), hidden


class Causal(nn.Module):
    """Computes its own loss: every token predicts the next."""

    example_input_array = dict.fromkeys(
        ("ids", "labels"), torch.zeros(3, 7, dtype=torch.int64)
    )

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        logits, _ = self.tagger(ids)
        shifted = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)
        return {
            "loss": F.cross_entropy(logits.flatten(0, 1), shifted),
            "logits": logits,
        }


def tokens(generator: torch.Generator, rows: int = 3, length: int = 7) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator)


def pairs(
    seed: int, sizes: list[tuple[int, int]], *, padded: bool = False
) -> list[Any]:
    """Return (ids, labels) micro-batches; some end in padding, one in nothing else."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index, (rows, length) in enumerate(sizes):
        ids, labels = (tokens(generator, rows, length) for _ in range(2))
        if padded:
            kept = (
                0
                if index == 2
                else int(torch.randint(1, length, (), generator=generator))
            )
            labels[:, kept:] = IGNORED
        made.append((ids, labels))
    return made


def dicts(seed: int, sizes: list[tuple[int, int]]) -> list[Any]:
    batches = pairs(seed, sizes, padded=True)
    return [{"ids": ids, "labels": labels} for ids, labels in batches]


FOUR = [(3, 7)] * 4


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


def tag_loss(output: Any, labels: Tensor) -> Tensor:
    return cross_entropy(output[0], labels)


def of_pair(model: nn.Module, loss: Any, batch: Any) -> Any:
    found = loss(model(batch[0]), batch[1])
    return found if isinstance(found, tuple) else (found, {})


# ------------------------------------------------- shapes that change, evaluation


def changing_steps(replicas: int) -> list[Step]:
    def batches(seed: int, sizes: list[tuple[int, int]]) -> list[list[Any]]:
        return [pairs(seed + 10 * replica, sizes) for replica in range(replicas)]

    mixed = [(3, 7), (2, 5), (5, 9), (3, 7)]
    outputs = {"return_logits": True}
    return [
        Step(batches=batches(0, FOUR)),
        Step(batches=batches(1, [(5, 4)] * 3), train=False, options=outputs),
        Step(batches=batches(2, FOUR)),
        Step(batches=batches(3, FOUR), train=False),
        Step(batches=batches(4, mixed)),
        Step(
            batches=batches(5, mixed),
            train=False,
            options={"compute_loss": False, "reduce_output": None},
        ),
        Step(batches=batches(6, mixed), train=False, options={"reduce_output": None}),
        Step(batches=batches(7, FOUR)),
        Step(batches=batches(8, [(2, 6)]), train=False, options=outputs),
        Step(batches=batches(9, FOUR)),
    ]


def changing(**options: Any) -> Script:
    return Script(
        build=Tagger,
        steps=changing_steps,
        loss=lambda: tag_loss,
        forward=of_pair,
        **options,
    )


# ---------------------------------------------------------- a loss with parameters


class Tempered(nn.Module):
    """A cross entropy with a temperature that is learned, and a report of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((VOCABULARY,), 1.5))
        self.side = nn.Linear(WIDTH, 1)

    def forward(self, output: Any, labels: Tensor) -> Any:
        logits, hidden = output
        side = self.side(hidden).square().mean()
        plain = cross_entropy(logits * self.scale, labels)
        return plain + side, {"plain": plain, "side": side}


def plain_steps(replicas: int) -> list[Step]:
    steps = [
        Step(batches=[pairs(s + 10 * r, FOUR) for r in range(replicas)])
        for s in range(3)
    ]
    return [*steps, Step(batches=steps[0].batches, train=False)]


def tempered(**config: Any) -> Script:
    return Script(
        build=Tagger,
        steps=plain_steps,
        loss=Tempered,
        forward=of_pair,
        config=config,
    )


# -------------------------------------------------------- the mean over all tokens


def padded_steps(replicas: int, make: Any) -> list[Step]:
    trained = [
        Step(batches=[make(s + 10 * r, FOUR) for r in range(replicas)])
        for s in range(3)
    ]
    return [*trained, Step(batches=trained[1].batches, train=False)]


def tagged_sum(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    ids, labels = batch
    logits, _ = model(ids)
    return cross_entropy(logits, labels, "sum"), int((labels != IGNORED).sum())


def causal_sum(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    logits, labels = model(**batch)["logits"][:, :-1], batch["labels"][:, 1:]
    return cross_entropy(logits, labels, "sum"), int((labels != IGNORED).sum())


def weighted(count: Any = True) -> Script:
    return Script(
        build=Tagger,
        steps=functools.partial(
            padded_steps, make=functools.partial(pairs, padded=True)
        ),
        loss=lambda: tag_loss,
        forward=of_pair,
        summed=tagged_sum,
        token_weighted=count,
    )


def count_tags(batch: Any) -> Tensor:
    return (batch[1] >= 0).sum()


def weighted_causal() -> Script:
    return Script(
        build=Causal,
        steps=functools.partial(padded_steps, make=dicts),
        forward=lambda model, _, batch: (model(**batch)["loss"], {}),
        summed=causal_sum,
        token_weighted=True,
    )


CASES = {
    "changing": changing,
    "tempered": tempered,
    "tempered-clipped": lambda: tempered(gradient_clipping=0.05),
    "tempered-zero": lambda: tempered(zero_optimization={"stage": 1}),
    "tempered-bf16-zero": lambda: replace(
        tempered(bf16={"enabled": True}, zero_optimization={"stage": 1}),
        dtype="bfloat16",
    ),
    "tempered-dual": lambda: replace(tempered(), schedule="dualpipev"),
    "changing-bubble": lambda: changing(zero_bubble=True),
    "tempered-bubble": lambda: replace(
        tempered(gradient_clipping=0.05), zero_bubble=True
    ),
    "weighted": weighted,
    "weighted-counted": lambda: weighted(count_tags),
    "weighted-causal": weighted_causal,
    "weighted-causal-dual": lambda: replace(weighted_causal(), schedule="dualpipev"),
}
