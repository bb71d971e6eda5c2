"""Modules that are called as a whole: which they are, and how to run odd ones."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from partitioner.capture.fakes import make_fake, refresh_flat_weights
from partitioner.capture.tree import flatten, map_tree, rebuild, template
from partitioner.capture.values import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["Known", "is_leaf", "run_for_real", "why_whole"]

REAL_ELEMENTS = 2**26
"""Weights of a module that is run for real; above, recording gives up on it."""

SEEDS = (0, 1)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about the tensors of a recording."""

    mode: FakeTensorMode
    """The mode of the fakes."""
    examples: Mapping[int, torch.Tensor]
    """id of a fake input → the tensor that the user gave."""
    integer: int = 0
    """What other integers are taken to be."""


Made = dict[int, tuple[torch.Tensor, torch.Tensor, int]]
"""id of a fake → the fake, its real stand-in, and the stand-in's version."""


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is called as a whole: torch.nn's own building blocks.

    Containers and the Transformer family are recorded through, so that a cut may go
    between their layers.
    """
    if not type(module).__module__.startswith(("torch.nn", "torch.ao.nn")):
        return False
    if isinstance(module, nn.MultiheadAttention):
        return True
    return next(module.children(), None) is None


def why_whole(module: nn.Module) -> str:
    """Return why a module can only be called whole, whatever it computes; or ""."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    if module._backward_hooks or module._backward_pre_hooks:  # noqa: SLF001 - nn.Module has no public name
        return "it has a backward hook"
    return ""


def run_for_real(
    known: Known,
    module: nn.Module,
    call: Callable[[Any, Any], Any],
    arguments: tuple[Any, Any],
    on_write: Callable[[torch.Tensor], None],
) -> tuple[Any] | None:
    """Run a module on random numbers, to learn what fakes cannot tell.

    Integers (lengths, indices) are the example's where they are inputs of the model,
    repeated at other sizes, and otherwise ones or zeros.

    Args:
        known: The fakes' mode and the example's inputs.
        module: A module whose weights are fakes; they are back afterwards.
        call: ``call(args, kwargs)`` runs its forward.
        arguments: (args, kwargs) with fakes.
        on_write: Called with every fake whose real stand-in was written in place.

    Returns:
        The result with fakes in place of tensors, in a tuple; None if it cannot be
        run, or if what it returns depends on the numbers.
    """
    weights = [*module.parameters(), *module.buffers()]
    if sum(weight.numel() for weight in weights) > REAL_ELEMENTS:
        return None
    fills = [known]
    if any(_is_integers(leaf) for _, leaf in flatten(arguments)):
        fills.append(replace(known, examples={}, integer=1))
    results: list[tuple[Any]] = []
    for fill in fills:
        found = [
            _attempt(fill, module, call, arguments, on_write, seed=seed)
            for seed in SEEDS
        ]
        if None not in found:  # else these integers are none that the module takes
            results += [result for result in found if result is not None]
    if not results:
        return None
    shapes = [
        [(path, _shape(leaf)) for path, leaf in flatten(result)] for result in results
    ]
    depends = any(_is_number(leaf) for _, leaf in flatten(results[0]))
    if any(shape != shapes[0] for shape in shapes) or depends:
        return None
    return results[0]


def _is_integers(leaf: Any) -> bool:
    return isinstance(leaf, FakeTensor) and not leaf.is_floating_point()


def _attempt(
    known: Known,
    module: nn.Module,
    call: Callable[[Any, Any], Any],
    arguments: tuple[Any, Any],
    on_write: Callable[[torch.Tensor], None],
    *,
    seed: int,
) -> tuple[Any] | None:
    """Run once; return the result with fakes, or None if it failed."""
    torch.manual_seed(seed)
    made: Made = {}
    args, kwargs = map_tree(lambda value: _real(value, made, known), arguments)
    try:
        with _real_weights(module, made, known):
            out = call(args, kwargs)
    except Exception:
        return None
    for fake, real, before in made.values():
        if version(real) != before:
            on_write(fake)
    fakes = template(out, lambda value: _fake(value, made, known.mode))
    return (rebuild(fakes, lambda value: value),)


def _real(value: Any, made: Made, known: Known) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    if id(value) not in made:
        real = _random_like(value, known)
        if isinstance(value, nn.Parameter):
            real = nn.Parameter(real, requires_grad=value.requires_grad)
        elif value.requires_grad:
            real = real.requires_grad_().clone()  # may be written in place
        made[id(value)] = (value, real, version(real))
    return made[id(value)][1]


def _random_like(fake: torch.Tensor, known: Known) -> torch.Tensor:
    shape, device = tuple(fake.shape), fake.device
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        return torch.randn(shape, dtype=fake.dtype, device=device)
    example = known.examples.get(id(fake))
    if example is None or example.is_meta:
        return torch.full(shape, known.integer, dtype=fake.dtype, device=device)
    for dim, size in enumerate(shape):
        places = torch.arange(size, device=example.device) % example.shape[dim]
        example = example.index_select(dim, places)
    return example.to(device)


def _fake(
    value: Any,
    made: Made,
    mode: FakeTensorMode,
) -> Any:
    """Return the fake that a real tensor stood for, or a new one like it."""
    if not isinstance(value, torch.Tensor):
        return value
    for fake, real, _ in made.values():
        if real is value:
            return fake
    return make_fake(mode, value.detach(), device=value.device).requires_grad_(
        value.requires_grad
    )


@contextmanager
def _real_weights(module: nn.Module, made: Made, known: Known) -> Iterator[None]:
    tables = [
        table
        for inner in module.modules()
        if not isinstance(inner, torch.jit.ScriptModule)
        for table in (inner._parameters, inner._buffers)  # noqa: SLF001 - swapped below nn.Module's checks
    ]
    before: list[dict[str, Any]] = [dict(table) for table in tables]
    for table in tables:
        for name, fake in table.items():
            table[name] = _real(fake, made, known)
    _refresh(module)
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
        _refresh(module)


def _refresh(module: nn.Module) -> None:
    for inner in module.modules():
        refresh_flat_weights(inner)


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.requires_grad
    return type(leaf)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex)
