"""Small models in hand-made segments: ties, recomputation, labels used late."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from partitioner.runtime.batch import BatchAdapter
from partitioner.runtime.inputs import InputLeaf
from partitioner.runtime.segment import SegmentBody
from partitioner.runtime.ties import ParameterTie
from tests.distributed.case_parts import (
    MICRO_BATCHES,
    ROWS,
    VOCABULARY,
    WIDTH,
    Parts,
    micro_batches,
    supervised,
    tokens,
    vectors,
)
from tests.distributed.training import Case, Part
from tests.distributed.wire_cases import every_kind, mixed

__all__ = ["CASES"]

# ------------------------------------------------------------- ties and clipping


class Tied(Parts):
    def __init__(self) -> None:
        super().__init__(
            embed=nn.Embedding(VOCABULARY, WIDTH),
            body=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
            head=nn.Linear(WIDTH, VOCABULARY),
        )
        self.get_submodule("head").weight = self.get_submodule("embed").weight


class LateHead(nn.Module):
    """Uses its tied weight from the second batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, VOCABULARY)
        self.other = nn.Linear(WIDTH, VOCABULARY)
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        head = self.other if self.calls <= MICRO_BATCHES else self.shared
        result: Tensor = head(hidden)
        return result


class LateTied(Parts):
    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), head=LateHead())
        shared = self.get_submodule("head.shared")
        shared.weight = self.get_submodule("embed").weight


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def tied(bounds: tuple[int, ...], **options: Any) -> Case:
    return Case(
        build=Tied,
        parts=[Part(path="embed"), Part(path="body"), Part(path="head")],
        bounds=bounds,
        batches=tokens,
        forward=supervised(cross_entropy),
        loss_fn=cross_entropy,
        ties=(
            ParameterTie(
                name="embed.weight",
                aliases=("head.weight",),
                stages=(0, len(bounds) - 2),
            ),
        ),
        **{"clipping": 0.05, **options},
    )


def late_tied() -> Case:
    return Case(
        build=LateTied,
        parts=[Part(path="embed"), Part(path="head")],
        bounds=(0, 1, 2),
        batches=tokens,
        forward=supervised(cross_entropy),
        loss_fn=cross_entropy,
        ties=(
            ParameterTie(
                name="embed.weight", aliases=("head.shared.weight",), stages=(0, 1)
            ),
        ),
        clipping=0.05,
    )


# ------------------------------------------------ checkpoints, dropout, statistics


def random_stage() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))


def statistics_stage() -> nn.Module:
    return nn.Sequential(
        nn.ReLU(inplace=True), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
    )


def recomputed(*, checkpointed: bool) -> Case:
    # Only stage 0 draws random numbers, so its generator steps as in one process.
    return Case(
        build=lambda: Parts(
            random=random_stage(), norm=statistics_stage(), last=nn.Linear(WIDTH, WIDTH)
        ),
        parts=[
            Part(path="random", checkpointed=checkpointed),
            Part(path="norm", checkpointed=checkpointed),
            Part(path="last"),
        ],
        bounds=(0, 1, 3),
        batches=vectors,
        forward=supervised(F.mse_loss),
        loss_fn=F.mse_loss,
    )


def random_everywhere(*, checkpointed: bool) -> Case:
    """Both stages draw: no longer as one process would."""
    return Case(
        build=lambda: Parts(
            first=random_stage(), second=random_stage(), last=nn.Linear(WIDTH, WIDTH)
        ),
        parts=[
            Part(path="first", checkpointed=checkpointed),
            Part(path="second", checkpointed=checkpointed),
            Part(path="last"),
        ],
        bounds=(0, 1, 3),
        batches=vectors,
        forward=supervised(F.mse_loss),
        loss_fn=F.mse_loss,
    )


# ------------------------------------------------ dict batches, labels used late


class Classifier(Parts):
    def forward(self, ids: Tensor, scale: Tensor, labels: Tensor) -> Any:
        logits = super().forward(ids, scale)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class ScaledEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        result: Tensor = self.table(ids) * scale
        return result


def dictionaries(replica: int) -> list[list[Any]]:
    def make(generator: torch.Generator) -> Any:
        ids, labels = (
            torch.randint(0, VOCABULARY, (ROWS, 5), generator=generator)
            for _ in range(2)
        )
        scale = torch.rand(ROWS, 1, 1, generator=generator)
        return {"labels": labels, "scale": scale, "ids": ids}

    return micro_batches(make, replica)


def late_body() -> SegmentBody:
    graph = fx.Graph()
    logits, labels = graph.placeholder("logits"), graph.placeholder("labels")
    loss = graph.call_function(cross_entropy, (logits, labels))
    graph.output((loss, logits))
    return SegmentBody(name="late", graph=graph)


def labelled() -> Case:
    leaves = (
        InputLeaf(name="ids", parameter="ids", dtype=torch.int64, shape=(None, 5)),
        InputLeaf(
            name="scale", parameter="scale", dtype=torch.float32, shape=(None, 1, 1)
        ),
        InputLeaf(
            name="labels", parameter="labels", dtype=torch.int64, shape=(None, 5)
        ),
    )

    def forward(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(**batch)["loss"]
        return loss

    return Case(
        build=lambda: Classifier(
            embed=ScaledEmbedding(), head=nn.Linear(WIDTH, VOCABULARY)
        ),
        parts=[Part(path="embed", inputs=2), Part(path="head")],
        bounds=(0, 1, 2),
        batches=dictionaries,
        forward=forward,
        loss_body=late_body,
        rebuild=lambda leaves: {"loss": leaves[0], "logits": leaves[1]},
        adapter=BatchAdapter(leaves=leaves, first=(0, 1), late=(2,)),
    )


CASES = {
    "mixed-1": lambda: mixed((0, 3)),
    "mixed-2": lambda: mixed((0, 1, 3)),
    "mixed-3": lambda: mixed((0, 1, 2, 3)),
    "mixed-3-checkpointed": lambda: mixed((0, 1, 2, 3), checkpointed=True),
    "kinds-2": lambda: every_kind(2),
    "kinds-3": lambda: every_kind(3),
    "kinds-3-checkpointed": lambda: every_kind(3, checkpointed=True),
    "kinds-4": lambda: every_kind(4),
    "tied-2": lambda: tied((0, 2, 3)),
    "tied-3": lambda: tied((0, 1, 2, 3)),
    "tied-2-zero": lambda: tied((0, 2, 3), config={"zero_optimization": {"stage": 1}}),
    "tied-2-bf16": lambda: tied((0, 2, 3), config={"bf16": {"enabled": True}}),
    "tied-2-bf16-zero": lambda: tied(
        (0, 2, 3),
        config={"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    ),
    "tied-2-bf16-zero-fp32": lambda: tied(
        (0, 2, 3),
        config={
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
    ),
    "tied-2-zero-accumulator": lambda: tied(
        (0, 2, 3),
        config={
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "bf16"},
        },
    ),
    "tied-late": late_tied,
    "plain": lambda: recomputed(checkpointed=False),
    "checkpointed": lambda: recomputed(checkpointed=True),
    "random": lambda: random_everywhere(checkpointed=False),
    "random-again": lambda: random_everywhere(checkpointed=False),
    "random-checkpointed": lambda: random_everywhere(checkpointed=True),
    "labelled": labelled,
}
