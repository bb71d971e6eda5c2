"""Values by the modules' own rules: the same on whatever rank they are made."""

from __future__ import annotations

import hashlib
import inspect
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from partitioner.errors import WeightsError
from partitioner.runtime.weights.copies import copy_with, like, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.runtime.weights.wanted import Wanted

__all__ = ["Rules", "made_by_rules"]

_RESETS = ("reset_parameters", "_reset_parameters", "init_weights", "_init_weights")
_PART = 2**20
Rule = tuple[str, Any]
"""What a rule is, for messages, and the call that applies it."""


class Rules:
    """Makes values module by module, on a copy of the model that is else on ``meta``.

    While a module's own tensors get their values, all others have none: what its rules
    and those of the modules around it do to others has no effect, and every module
    begins with the random numbers of its own path. So values depend on nothing but
    the model, the seed and the path.

    Args:
        model: The user's model, left as it is.
        seed: Another seed gives other values.
        apply: A function of a module, called last, as ``model.apply`` would.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int = 0,
        apply: Callable[[nn.Module], object] | None = None,
    ) -> None:
        self._seed = seed
        self._apply = apply
        self._root, _ = copy_with(model, _empty)

    def make(
        self, path: str, wanted: Sequence[Wanted], *, all_drawn: bool = True
    ) -> dict[str, Tensor]:
        """Return values, on the CPU, for tensors that a module has itself.

        Args:
            path: The module.
            wanted: Which of its parameters and buffers; without values so far.
            all_drawn: Whether its other tensors have memory too meanwhile, so that
                these are the same whichever are wanted.

        Returns:
            Values by name.

        Raises:
            WeightsError: A rule failed, or none gives one of them its values.
        """
        module = self._root.get_submodule(path)
        names = {each.name.rpartition(".")[2]: each for each in wanted}
        with _kept(self._root), _seeded(f"{self._seed}:{path}"), torch.no_grad():
            own = _names(module) if all_drawn else names
            blanks = {name: _blank(module, name) for name in own}
            for what, rule in self._rules(path):
                _run(what, rule, path)
            made = {name: _entry(module, name) for name in names}
            for name, each in names.items():
                self._check_made(each, blanks[name], made[name])
            return {names[name].name: made[name].detach() for name in names}

    def _rules(self, path: str) -> Iterator[Rule]:
        """Yield the rules that may concern a module: its own, then outer ones."""
        around = _around(path)
        for outer in around:
            module = self._root.get_submodule(outer)
            for name in _resets(module):
                yield _call(module, outer, name)
        for outer in around:
            initialiser = self._initialiser(outer)
            if initialiser is not None:
                owner, rule = initialiser
                module = self._root.get_submodule(outer)
                yield (
                    f"{type(owner).__name__}._init_weights on {outer or 'the model'}",
                    lambda rule=rule, module=module: rule(module),
                )
        if self._apply is not None:
            function = self._apply
            for outer in around:
                module = self._root.get_submodule(outer)
                yield (
                    f"apply on {outer or 'the model'}",
                    lambda module=module: function(module),
                )

    def _initialiser(self, path: str) -> tuple[nn.Module, Any] | None:
        """Return the nearest ``_init_weights(module)`` of this module or around it."""
        for outer in _around(path):
            owner = self._root.get_submodule(outer)
            rule = getattr(owner, "_init_weights", None)
            if _takes(rule) == 1:
                return owner, rule
        return None

    def _check_made(self, wanted: Wanted, blank: Tensor, made: Tensor) -> None:
        owner = type(self._root.get_submodule(wanted.owner)).__name__
        where = f"of {owner} {wanted.owner!r}" if wanted.owner else f"of {owner} itself"
        if made.shape != blank.shape or made.dtype != blank.dtype or made.is_meta:
            raise WeightsError(
                f"the rules make {wanted.what} a {made.dtype} of shape "
                f"{tuple(made.shape)} on {made.device}; the model has {blank.dtype}, "
                f"{tuple(blank.shape)}",
                hint="a rule must keep shape and dtype",
            )
        if made is blank and not _written(made):
            raise WeightsError(
                f"nothing says what {wanted.what} {where} is at the beginning: neither "
                f"{owner} nor a module around it has a rule that sets all of it",
                hint=f"give {owner} a reset_parameters() that does; "
                + (
                    "or pass InitialWeights(apply=function)"
                    if wanted.persistent
                    else "or give the buffer its values before partition()"
                ),
            )


def made_by_rules(
    model: nn.Module,
    wanted: Sequence[Wanted],
    device: torch.device,
    *,
    seed: int | None = None,
    apply: Callable[[nn.Module], object] | None = None,
) -> dict[int, Tensor]:
    """Return values by the id of the model's tensor; what has values keeps them.

    Args:
        model: The whole model.
        wanted: Its tensors that are to get values.
        device: Where.
        seed: Another seed gives other values; None if nothing drawn is wanted.
        apply: A function of a module, called last.

    Raises:
        WeightsError: A rule failed, or there is none.
    """
    found: dict[int, Tensor] = {}
    by_owner: dict[str, list[Wanted]] = {}
    for each in wanted:
        if each.tensor.is_meta:
            by_owner.setdefault(each.owner, []).append(each)
        else:
            found[id(each.tensor)] = each.tensor.detach().to(device, copy=True)
    if not by_owner:
        return found
    rules = Rules(model, seed=seed or 0, apply=apply)
    for path, group in by_owner.items():
        values = rules.make(path, group, all_drawn=seed is not None)
        for each in group:
            found[id(each.tensor)] = values[each.name].to(device)
    return found


def _around(path: str) -> list[str]:
    """Return a path and those of all modules around it, up to the root."""
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps), -1, -1)]


def _resets(module: nn.Module) -> list[str]:
    """Return the methods that initialise a module and need nothing to do so."""
    if _takes(getattr(module, "_init_weights", None)) == 1:
        # Then init_weights applies that to all modules inside, as is done here.
        return [name for name in _RESETS[:2] if _takes(_method(module, name)) == 0]
    return [name for name in _RESETS if _takes(_method(module, name)) == 0]


def _method(module: nn.Module, name: str) -> Any:
    return getattr(module, name, None) if hasattr(type(module), name) else None


def _takes(method: Any) -> int | None:
    """Return how many arguments a method needs; None if it is none."""
    if not inspect.ismethod(method):
        return None
    return sum(
        parameter.default is parameter.empty
        and parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(method).parameters.values()
    )


def _call(module: nn.Module, path: str, name: str) -> Rule:
    method = getattr(module, name)
    return f"{type(module).__name__}.{name} of {path or 'the model'}", method


def _run(what: str, rule: Callable[[], object], path: str) -> None:
    try:
        rule()
    except Exception as error:  # the user's own code, which may raise anything
        raise WeightsError(
            f"{what} failed while the weights of {path or 'the model'!r} were made "
            f"({type(error).__name__}: {error})",
            hint="a rule may read the values of its own module's tensors alone: all "
            "others are on meta, since no rank has the whole model",
        ) from error


def _tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a module's own parameters and buffers, past nn.Module's checks."""
    return module._parameters, module._buffers  # noqa: SLF001


@contextmanager
def _kept(root: nn.Module) -> Iterator[None]:
    """Put all tensors back as they were, and what rules have noted on them."""
    tables = [table for module in root.modules() for table in _tables(module)]
    before = [(table, dict(table)) for table in tables]
    marks = [(tensor, dict(vars(tensor))) for tensor in tensors_of(root)]
    try:
        yield
    finally:
        for table, entries in before:
            table.clear()
            table.update(entries)
        for tensor, entries in marks:
            vars(tensor).clear()
            vars(tensor).update(entries)


def _names(module: nn.Module) -> list[str]:
    tables = _tables(module)
    return [name for table in tables for name in table if table[name] is not None]


def _entry(module: nn.Module, name: str) -> Tensor:
    found: Tensor = next(t[name] for t in _tables(module) if name in t)
    return found


def _empty(tensor: Tensor) -> Tensor:
    return like(tensor, torch.empty_like(tensor.detach(), device="meta"))


def _blank(module: nn.Module, name: str) -> Tensor:
    """Put memory on the CPU in the place of a module's tensor, marked as unwritten."""
    table = next(table for table in _tables(module) if name in table)
    blank = torch.empty_like(table[name].detach(), device="cpu")
    if blank.is_floating_point() or blank.is_complex():
        blank.fill_(float("nan"))
    table[name] = like(table[name], blank)
    made: Tensor = table[name]
    made.__dict__["_blank_version"] = made._version  # noqa: SLF001 - torch has no public name
    return made


def _written(tensor: Tensor) -> bool:
    """Whether every number has been set (of integers: whether any has)."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor._version > tensor.__dict__["_blank_version"] or not tensor.numel()  # noqa: SLF001
    flat = tensor.detach().reshape(-1)
    parts = range(0, flat.numel(), _PART)
    return not any(bool(flat[i : i + _PART].isnan().any()) for i in parts)


@contextmanager
def _seeded(text: str) -> Iterator[None]:
    """Draw as this text says, and leave the generators as they were."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
