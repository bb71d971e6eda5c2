"""Random modules: what forwards do, in any order, on tensors of one shape.

A recipe is plain data, so that hypothesis can shrink it and print it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Recipe", "Step", "built", "example", "recipes"]

WIDTH = 6
LENGTH = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a forward: an operation on two of the values made so far."""

    what: str
    first: int = 0
    second: int = 0
    """Which values, counted from the newest."""
    inner: Recipe | None = None
    """What the module of a ``block`` does."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One module's forward."""

    steps: tuple[Step, ...]
    returns: str = "tensor"
    """``tensor``, ``tuple`` or ``dict``."""


# -- submodules -----------------------------------------------------------------------


class BatchStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Counts(nn.Module):
    """Changes a buffer and then reads it."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps


class Averages(nn.Module):
    """A moving average of what it sees in train mode."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x - self.mean


class OtherCodeInEval(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if self.training else x.relu() + 0.1


class ReadsValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Gives(nn.Module):
    """Hands a dictionary, with a tuple inside, to the next module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"main": self.layer(x), "sides": (y, x.mean()), "none": None}


class Takes(nn.Module):
    def forward(self, state: dict[str, Any]) -> Tensor:
        side, mean = state["sides"]
        return torch.tanh(state["main"]) + side * mean


class GivesAndTakes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gives, self.takes = Gives(), Takes()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.takes(self.gives(x, y))


PARTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.4),
    "relu in place": lambda: nn.ReLU(inplace=True),
    "dropout in place": lambda: nn.Dropout(0.4, inplace=True),
    "batch statistics": BatchStatistics,
    "counts": Counts,
    "averages": Averages,
    "other code in eval": OtherCodeInEval,
    "reads a value": ReadsValue,
}
"""Submodules of one argument, by the step that calls them."""

# -- a module's own code --------------------------------------------------------------


def write(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y, alpha=0.5)


def write_half(x: Tensor, y: Tensor) -> Tensor:
    half = x[..., : WIDTH // 2]
    half.mul_(0.5)
    half += 1
    return x


def write_copy(x: Tensor, y: Tensor) -> Tensor:
    copy = x.clone()
    copy[:, 0] = y[:, -1]
    return copy


def without_gradients(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.sigmoid(x) * y


def fold(x: Tensor, y: Tensor) -> Tensor:
    batch, length, _ = x.shape
    flat = x.reshape(batch * length, WIDTH)
    return (flat / length).view(batch, length, WIDTH) + y


def positions(x: Tensor, y: Tensor) -> Tensor:
    return x + torch.arange(x.shape[1]).unsqueeze(-1) / x.size(1)


def pieces(x: Tensor, y: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([right, left], dim=-1)


CODE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "tanh": lambda x, y: torch.tanh(x),
    "attend": lambda x, y: F.scaled_dot_product_attention(x, y, y),
    "view": lambda x, y: x.transpose(0, 1).transpose(0, 1),
    "no change": lambda x, y: x.contiguous(),
    "write": write,
    "write half": write_half,
    "write a copy": write_copy,
    "detach": lambda x, y: x.detach(),
    "no gradients": without_gradients,
    "fold": fold,
    "positions": positions,
    "pieces": pieces,
    "noise": lambda x, y: x + 0.1 * torch.randn_like(x),
}
"""What a forward does itself with two values."""

OWN = (
    "shared",
    "tied",
    "parameter",
    "by mode",
    "functional dropout",
    "gives and takes",
)
"""Steps that need the module they are in."""


class Block(nn.Module):
    """Does what a recipe says; sees a module and a weight that others use as well."""

    def __init__(self, recipe: Recipe, shared: nn.Module, tied: Tensor) -> None:
        super().__init__()
        self.recipe = recipe
        self.shared, self.tied = shared, tied
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.parts = nn.ModuleDict()
        for number, step in enumerate(recipe.steps):
            if step.inner is not None:
                self.parts[str(number)] = Block(step.inner, shared, tied)
            elif step.what == "gives and takes":
                self.parts[str(number)] = GivesAndTakes()
            elif step.what in PARTS:
                self.parts[str(number)] = PARTS[step.what]()

    def forward(self, x: Tensor, other: Tensor) -> Any:
        made = [other, x]
        for number, step in enumerate(self.recipe.steps):
            a = made[-1 - step.first % len(made)]
            b = made[-1 - step.second % len(made)]
            made += tensors(self.run(number, step, a, b))
        if self.recipe.returns == "tensor":
            return made[-1]
        if self.recipe.returns == "tuple":
            return made[-1], made[len(made) // 2]
        return {"last": made[-1], "middle": made[len(made) // 2]}

    def run(self, number: int, step: Step, a: Tensor, b: Tensor) -> Any:
        if step.inner is not None:
            return self.parts[str(number)](a, other=b)
        if step.what in CODE:
            return CODE[step.what](a, b)
        if step.what in PARTS:
            return self.parts[str(number)](a)
        if step.what == "gives and takes":
            return self.parts[str(number)](a, b)
        return self.own(step.what, a)

    def own(self, what: str, a: Tensor) -> Tensor:
        if what == "shared":
            return self.shared(a)
        if what == "tied":
            return F.linear(a, self.tied)
        if what == "parameter":
            return a * self.scale
        if what == "functional dropout":
            return F.dropout(a, 0.3, training=self.training)
        return a * (0.5 if self.training else 2.0)


def tensors(found: Any) -> list[Tensor]:
    """Return a block's results in order."""
    if isinstance(found, Tensor):
        return [found]
    return list(found.values() if isinstance(found, dict) else found)


class Root(nn.Module):
    """A block between two layers, so that there is a place for a cut."""

    def __init__(self, recipe: Recipe, shared: Recipe) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        inside = nn.Linear(WIDTH, WIDTH)
        block = Block(shared, inside, self.first.weight)
        self.body = Block(recipe, OneResult(block), self.first.weight)

    def forward(self, x: Tensor, other: Tensor) -> Any:
        found = self.body(self.first(x), other)
        *rest, last = tensors(found)
        return {"rest": rest, "last": self.last(last)}


class OneResult(nn.Module):
    """A block with one argument and one result."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return tensors(self.block(x, x))[-1]


# -- recipes --------------------------------------------------------------------------

PLACES = st.integers(0, 4)
PLAIN_STEPS = st.builds(
    Step, st.sampled_from([*CODE, *PARTS, *OWN]), first=PLACES, second=PLACES
)
RETURNS = st.sampled_from(["tensor", "tuple", "dict"])


def _recipes(steps: st.SearchStrategy[Step], most: int) -> st.SearchStrategy[Recipe]:
    several = st.lists(steps, min_size=1, max_size=most).map(tuple)
    return st.builds(Recipe, several, returns=RETURNS)


def _blocks(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just("block"), first=PLACES, second=PLACES, inner=inner)


_SMALL = _recipes(PLAIN_STEPS, 4)
_MIDDLE = _recipes(st.one_of(PLAIN_STEPS, PLAIN_STEPS, _blocks(_SMALL)), 4)


def recipes() -> st.SearchStrategy[Recipe]:
    """Modules of up to three levels."""
    step = st.one_of(PLAIN_STEPS, PLAIN_STEPS, _blocks(_MIDDLE))
    return _recipes(step, 7)


def built(recipe: Recipe, shared: Recipe) -> nn.Module:
    """Make the module, with weights that depend on the recipe only.

    Args:
        recipe: What the module does.
        shared: What the module does that every block may call.
    """
    torch.manual_seed(0)
    return Root(recipe, shared)


def example(batch: int) -> dict[str, Tensor]:
    """Return inputs of a :class:`Root`."""
    generator = torch.Generator().manual_seed(batch)
    names = ("x", "other")
    shape = (batch, LENGTH, WIDTH)
    return {name: torch.randn(shape, generator=generator) for name in names}
