"""Optimizer parameter groups by original names, the same number of them on all ranks.

DeepSpeed drops a group that is empty on a stage: schedulers would then number the
groups differently on each rank, and ZeRO-1, whose norm is summed group by group over
the stages, would wait for ever. So a group that a stage has no parameter for gets a
placeholder there: one zero without a gradient.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from partitioner.errors import OptionError
from partitioner.runtime.parameter_order import aligned
from partitioner.runtime.ties import is_counted

if TYPE_CHECKING:
    from partitioner.runtime.pipeline_module import PartitionedPipelineModule

__all__ = ["GroupPattern", "parameter_groups"]

GroupPattern = str | type[nn.Module] | Callable[[str, nn.Parameter], bool]
"""An original name or a glob over names, a class of modules whose parameters are meant,
or a function of (first original name, parameter)."""


@dataclass(kw_only=True)
class _Entry:
    """One parameter of the whole model."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    """Every original name, the first one first."""
    owners: list[nn.Module] = field(default_factory=list)
    """The modules it lies in, at any depth."""

    def is_meant_by(self, pattern: GroupPattern) -> bool:
        if isinstance(pattern, str):
            return any(fnmatch.fnmatchcase(name, pattern) for name in self.names)
        if isinstance(pattern, type):
            return any(isinstance(owner, pattern) for owner in self.owners)
        return bool(pattern(self.names[0], self.parameter))


def parameter_groups(
    module: PartitionedPipelineModule,
    model: nn.Module,
    rules: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return this rank's part of the optimizer's parameter groups.

    Args:
        module: This rank's stages.
        model: The whole model; its names, classes and ``requires_grad`` are read, its
            values are not (it may be on ``meta``).
        rules: Groups as torch's optimizers take them, with patterns as ``params``.

    Returns:
        A group for each rule, in order, and one more, without options of its own, for
        the trainable parameters that no rule means, if there are any. Parameters are in
        the order of the model, as far as they stay aligned in one tensor; frozen ones
        are in no group. Only depends on the whole model in number and order, so that it
        is the same on all ranks.

    Raises:
        OptionError: A rule is malformed, a pattern matches nothing or frozen
            parameters only, or two rules mean the same parameter.
    """
    entries = [*_entries(model), *_entries_of_loss(module)]
    chosen = _choose(entries, rules)
    rest = [
        entry.names[0]
        for entry in entries
        if entry.parameter.requires_grad and entry.names[0] not in chosen
    ]
    options = [{k: v for k, v in rule.items() if k != "params"} for rule in rules]
    if rest:
        chosen |= dict.fromkeys(rest, len(options))
        options.append({})
    members: list[list[nn.Parameter]] = [[] for _ in options]
    held = dict(module.original_named_parameters())
    for entry in entries:  # the model's order
        group = chosen.get(entry.names[0])
        if group is not None and entry.names[0] in held:
            members[group].append(held[entry.names[0]])
    for index, found in enumerate(members):
        if not found:
            found.append(module.placeholder(index))
    if not any(is_counted(parameter) for found in members for parameter in found):
        members[0].append(module.placeholder(0))
    return [
        {"params": aligned(found), **option}
        for found, option in zip(members, options, strict=True)
    ]


def _entries(model: nn.Module) -> list[_Entry]:
    """Return the parameters of the whole model in its own order."""
    found: dict[int, _Entry] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        entry = found.setdefault(id(parameter), _Entry(parameter=parameter))
        entry.names.append(name)
        steps = name.split(".")[:-1]
        entry.owners += [
            modules[".".join(steps[:depth])] for depth in range(len(steps) + 1)
        ]
    return list(found.values())


def _entries_of_loss(module: PartitionedPipelineModule) -> list[_Entry]:
    """Return the parameters of the user's loss, which only the last stage holds."""
    loss_fn = getattr(module.loss_fn, "loss_fn", None)
    if not isinstance(loss_fn, nn.Module):
        return []
    found = _entries(loss_fn)
    for entry in found:
        entry.names = [f"loss_fn.{name}" for name in entry.names]
    return found


def _choose(
    entries: Sequence[_Entry], rules: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Return the number of the rule that means each parameter, by its first name."""
    chosen: dict[str, int] = {}
    for number, rule in enumerate(rules):
        for pattern in _patterns(number, rule):
            for entry in _matched(entries, pattern, number):
                name = entry.names[0]
                if chosen.setdefault(name, number) != number:
                    raise OptionError(
                        f"the parameter {_called(entry)} is in groups "
                        f"{chosen[name]} and {number} (there by {_shown(pattern)})",
                        hint="an optimizer takes a parameter once: make one of the "
                        "patterns narrower, or use a function of (name, parameter)",
                    )
    return chosen


def _patterns(number: int, rule: Any) -> list[GroupPattern]:
    """Return the patterns of one rule."""
    if not isinstance(rule, Mapping) or "params" not in rule:
        raise OptionError(
            f"group {number} is {rule!r}",
            hint='write {"params": ["*.bias"], "weight_decay": 0.0}',
        )
    given = rule["params"]
    alone = isinstance(given, str) or not isinstance(given, Sequence)
    patterns: list[GroupPattern] = [given] if alone else list(given)
    for pattern in patterns:
        is_module = isinstance(pattern, type) and issubclass(pattern, nn.Module)
        is_function = callable(pattern) and not isinstance(pattern, type | nn.Module)
        if not (isinstance(pattern, str) or is_module or is_function):
            raise OptionError(
                f"group {number} has the pattern {pattern!r}",
                hint="give names or globs, classes of modules, or functions of "
                "(name, parameter)",
            )
    if not patterns:
        raise OptionError(f"group {number} has no patterns", hint="leave it out")
    return patterns


def _matched(
    entries: Sequence[_Entry], pattern: GroupPattern, number: int
) -> list[_Entry]:
    """Return the trainable parameters that a pattern means, on whatever stage."""
    matched = [entry for entry in entries if entry.is_meant_by(pattern)]
    trainable = [entry for entry in matched if entry.parameter.requires_grad]
    if trainable:
        return trainable
    if matched:
        raise OptionError(
            f"group {number}: every parameter that {_shown(pattern)} matches is "
            f"frozen, such as {_called(matched[0])}",
            hint="leave it out, or let them require grad before partition()",
        )
    names = [name for entry in entries for name in entry.names]
    close = (
        difflib.get_close_matches(pattern, names, n=3)
        if isinstance(pattern, str)
        else []
    )
    raise OptionError(
        f"group {number}: {_shown(pattern)} matches no parameter of the model",
        hint=f"similar: {', '.join(close)}" if close else f"names are like {names[0]}",
    )


def _called(entry: _Entry) -> str:
    first, *others = entry.names
    return f"{first!r} (also {', '.join(others)})" if others else repr(first)


def _shown(pattern: GroupPattern) -> str:
    """Return a pattern as the user would recognise it."""
    name = getattr(pattern, "__qualname__", None)
    return repr(pattern) if name is None else str(name)
