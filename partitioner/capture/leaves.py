"""Modules that are called as a whole: which they are, and how to run odd ones."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from partitioner.capture.fakes import make_fake, refresh_flat_weights
from partitioner.capture.forced import EXTREMES, ForcedDraws
from partitioner.capture.tree import flatten, map_tree, rebuild, template
from partitioner.capture.values import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["Known", "is_leaf", "run_for_real", "why_whole"]

REAL_ELEMENTS = 2**26
"""Weights of a module that is run for real; above, recording gives up on it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about the tensors of a recording."""

    mode: FakeTensorMode
    """The mode of the fakes."""
    examples: Mapping[int, torch.Tensor]
    """id of a fake input → the tensor that the user gave."""
    integer: int = 0
    """What other integers are taken to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What came of one run on random numbers."""

    result: Any
    """With fakes in place of tensors."""
    saved: list[torch.Tensor]
    """One tensor for each memory that autograd keeps."""

    def saved_bytes(self) -> int:
        """Return the bytes that autograd keeps, weights included."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.saved)


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
    *,
    on_write: Callable[[torch.Tensor], None],
    on_saved: Callable[[torch.Tensor], object],
) -> tuple[Any, bool] | None:
    """Run a module on random numbers, to learn what fakes cannot tell.

    Where it draws what it does (which of its layers run), the run counts that keeps
    most for backward.

    Integers (lengths, indices) are the example's where they are inputs of the model,
    repeated at other sizes, and otherwise ones or zeros.

    Args:
        known: The fakes' mode and the example's inputs.
        module: A module whose weights are fakes; they are back afterwards.
        call: ``call(args, kwargs)`` runs its forward.
        arguments: (args, kwargs) with fakes.
        on_write: Called with every fake whose real stand-in was written in place.
        on_saved: Called with what autograd keeps: fakes, or tensors without memory of
            the size of what the module made.

    Returns:
        The result with fakes in place of tensors, and whether what it keeps differs
        from run to run; None if it cannot be run, or if what it returns depends on
        the numbers.
    """
    weights = [*module.parameters(), *module.buffers()]
    if sum(weight.numel() for weight in weights) > REAL_ELEMENTS:
        return None
    fills = [known]
    if any(_is_integers(leaf) for _, leaf in flatten(arguments)):
        fills.append(replace(known, examples={}, integer=1))
    attempts: list[_Attempt] = []
    for fill in fills:
        found = [
            _attempt(fill, module, call, arguments, on_write, seed=seed, draws=draws)
            for seed, draws in enumerate(EXTREMES)
        ]
        if None not in found:  # else these integers are none that the module takes
            attempts += [attempt for attempt in found if attempt is not None]
    if not attempts:
        return None
    shapes = [
        [(path, _shape(leaf)) for path, leaf in flatten(attempt.result)]
        for attempt in attempts
    ]
    first = max(attempts, key=_Attempt.saved_bytes)  # of equals the first
    depends = any(_is_number(leaf) for _, leaf in flatten(first.result))
    if any(shape != shapes[0] for shape in shapes) or depends:
        return None
    for tensor in first.saved:
        on_saved(tensor)
    varies = len({attempt.saved_bytes() for attempt in attempts}) > 1
    return first.result, varies


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
    draws: float,
) -> _Attempt | None:
    """Run once; return what came of it, or None if it failed."""
    torch.manual_seed(seed)
    made: Made = {}
    args, kwargs = map_tree(lambda value: _real(value, made, known), arguments)
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            kept.setdefault(_memory(tensor), tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    try:
        with _real_weights(module, made, known), hooks, ForcedDraws(draws):
            out = call(args, kwargs)
    except Exception:
        return None
    for fake, real, before in made.values():
        if version(real) != before:
            on_write(fake)
    fakes = template(out, lambda value: _fake(value, made, known.mode))
    stand_ins = {
        _memory(real): fake
        for fake, real, _ in made.values()
        if real.layout is torch.strided
    }
    return _Attempt(
        result=rebuild(fakes, lambda value: value),
        saved=[stand_ins.get(place, _sized(real)) for place, real in kept.items()],
    )


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - as Values does for fakes


def _sized(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory whose storage has the size of the real one."""
    nbytes = tensor.untyped_storage().nbytes()
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")


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
    fake = make_fake(mode, value.detach(), device=value.device)
    made[id(fake)] = (fake, value, version(value))
    return fake.requires_grad_(value.requires_grad)


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
