"""Plain torch: every form of inputs and outputs."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.zoo.entry import Plain, noise, padding, tokens

__all__ = ["ENTRIES"]


@dataclasses.dataclass
class Answer:
    main: Tensor
    extra: Any = None


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Returns(nn.Module):
    """Returns two results in one of many forms."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return self.form(self.second(h), h)


class Passes(nn.Module):
    """Modules hand each other dataclasses, named tuples, dicts and None."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, state: dict[str, Any], *, scale: float = 1.0) -> Any:
            pair = state["pair"]
            left = torch.tanh(self.inner(pair.left)) * scale
            skip = left if state["skip"] is None else left + state["skip"].main
            return {"pair": Pair(skip, pair.right), "skip": Answer(left, [pair.left])}

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(self.Step() for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        state: dict[str, Any] = {"pair": Pair(x, x * 2), "skip": None}
        for step in self.steps:
            state = step(state, scale=0.5)
        return state["pair"].left + state["pair"].right, state["skip"].extra


class Takes(nn.Module):
    """Positional, keyword, nested, optional and defaulted inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        states: Any = (),
        *,
        scale: float = 2.0,
        flags: dict[str, Any] | None = None,
        target: Tensor | None = None,
    ) -> dict[str, Any]:
        h = self.first(x) * scale
        if mask is not None:
            h = h * mask
        for state in states:
            h = self.second(h + (state["a"] if isinstance(state, dict) else state))
        if flags and flags.get("square"):
            h = h * h
        out = self.third(h)
        loss = None if target is None else (out - target).abs().mean()
        return {"loss": loss, "out": out, "flags": flags}


class TakesAny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(6, 6) for name in "abc"})
        self.head = nn.Linear(6, 6)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        h: Any = sum(args)
        for name, value in sorted(kwargs.items()):
            h = torch.tanh(h + self.parts[name](value))
        return self.head(h)


class Classifies(nn.Module):
    """Computes its own loss from labels, ignoring some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 99)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Any:
        h = self.embedding(ids)
        h = h + torch.relu(self.mix(h)) * mask[..., None]
        logits = self.head(h)
        kept = torch.where(mask.bool(), labels, -100)
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), kept[:, 1:].flatten()
        )
        correct = ((logits.argmax(-1) == labels) & mask.bool()).sum()
        return loss, {"logits": logits, "correct": correct}


class WritesInput(nn.Module):
    """Writes into its input, and returns it with the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x + 0)
        x[:, 0] = 5.0
        x.mul_(2)
        return self.second(h) - x, x


class IntegerInputs(nn.Module):
    """Only integers and booleans come in; floats, half and double inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(99, 6, mode="sum")
        self.first = nn.Linear(6, 6)
        self.exact = nn.Linear(6, 6).double()
        self.last = nn.Linear(6, 6)

    def forward(self, ids: Tensor, flags: Tensor) -> Tensor:
        h = self.first(self.embedding(ids))
        wide = self.exact(h.double()).cumsum(-1)
        return self.last(wide.to(h.dtype)) * flags.any(-1, keepdim=True)


def _nested(y: Tensor, h: Tensor) -> Any:
    return {"a": [y, (h, None)], "b": 3, "c": "text", "d": {"e": Answer(y, h)}}


FORMS: dict[str, Any] = {
    "tensor": lambda y, h: y,
    "tuple": lambda y, h: (y, h),
    "list": lambda y, h: [y, h],
    "dict": lambda y, h: {"y": y, "h": h},
    "dataclass": lambda y, h: Answer(y, extra={"h": h}),
    "named tuple": Pair,
    "nested": _nested,
    "none and numbers": lambda y, h: (y, None, True, 2.5, h.shape[-1]),
    "one tensor twice": lambda y, h: (y, y, h, h),
    "view and base": lambda y, h: (y, y[:, :3], h.detach()),
    "several results of one operator": lambda y, h: (y.max(dim=1), h.topk(2)),
}


ENTRIES = (
    *(
        Plain(f"returns {name}", partial(Returns, form))
        for name, form in FORMS.items()
    ),
    Plain("passes structures", Passes),
    Plain("positional inputs", Takes, inputs=lambda n, _: (noise(n, 6), noise(n, 1))),
    Plain("default inputs", Takes),
    Plain(
        "keyword and nested inputs",
        Takes,
        inputs=lambda n, _: {
            "x": noise(n, 6),
            "states": [noise(n, 6), {"a": noise(n, 6)}],
            "scale": 0.5,
            "flags": {"square": True, "name": "text"},
            "target": noise(n, 6) + 1,
        },
    ),
    Plain(
        "variable positional inputs",
        TakesAny,
        inputs=lambda n, _: (noise(n, 6), noise(n, 6) + 1, noise(n, 6) - 1),
    ),
    Plain(
        "variable keyword inputs",
        TakesAny,
        inputs=lambda n, _: {"a": noise(n, 6), "b": noise(n, 6) + 1},
    ),
    Plain(
        "labels and loss",
        Classifies,
        length=12,
        inputs=lambda n, t: {
            "ids": tokens(n, t), "mask": padding(n, t), "labels": tokens(n, t),
        },
    ),
    Plain("writes its input", WritesInput),
    Plain(
        "integer inputs",
        IntegerInputs,
        length=7,
        inputs=lambda n, t: (tokens(n, t), padding(n, t) > 0),
        no_bf16="a part is in double precision",
    ),
)  # fmt: skip
