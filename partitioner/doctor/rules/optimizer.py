"""The optimizer, its variants, and clipping."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING

from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT

from partitioner.cost.memory import OPTIMIZER_STATES
from partitioner.doctor.finding import Edit, Rule, Symptom
from partitioner.doctor.optimizers import (
    ADAM,
    adam_compiles,
    optimizer_class,
    optimizer_known,
    right_spelling,
)
from partitioner.doctor.rules.shared import removal, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_CLIPPING = "gradient_clipping"
_TAKEN_OUT = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "max_grad_norm")
"""Params that the engine takes for itself (the last one it refuses)."""


def _clipping_default(case: Case) -> Iterator[Symptom]:
    if _CLIPPING not in case.config:
        default = GRADIENT_CLIPPING_DEFAULT
        yield Symptom(
            where=_CLIPPING,
            why=f"not given: this DeepSpeed clips at {default:g} (before 0.19.3 it did "
            "not clip), and plan.initialize does not",
            change=f'"{_CLIPPING}": {default:g}, or 0 for none',
            edits=(setting(_CLIPPING, default),),
        )


def _clipping_place(case: Case) -> Iterator[Symptom]:
    norm = case.section("optimizer", "params").get("max_grad_norm")
    if norm is None:
        return
    path = "optimizer.params.max_grad_norm"
    edits: tuple[Edit, ...] = (removal(path),)
    if _CLIPPING not in case.config:
        edits = (setting(_CLIPPING, norm), *edits)
    yield Symptom(
        where=path,
        why="DeepSpeed stops: clipping is no matter of the optimizer",
        change=f'"{_CLIPPING}": {norm}, at the top of the file',
        edits=edits,
    )


def _clipping_norm(case: Case) -> Iterator[Symptom]:
    if not case.plan and case.config.get(_CLIPPING):
        yield Symptom(
            where=_CLIPPING,
            why="a pipeline of DeepSpeed's own (0.19.8) clips by the norm of the first "
            "stage's parameters alone",
            change="plan.initialize(…), whose norm is that of the whole model",
        )


def _adam_mode(case: Case) -> Iterator[Symptom]:
    params = case.section("optimizer", "params")
    named = str(case.section("optimizer").get("type", "")).lower() == "adam"
    if named and "adam_w_mode" not in params and params.get("weight_decay"):
        path = "optimizer.params.adam_w_mode"
        yield Symptom(
            where="optimizer.type",
            why="DeepSpeed makes AdamW of Adam unless told not to: the weight decay is "
            "not part of the gradient",
            change='say which: "adam_w_mode": true (as it is now) or false',
            edits=(setting(path, value=True),),
        )


def _compiles(case: Case) -> Iterator[Symptom]:
    """Yield an Adam that is compiled at the start; worse where nothing compiles it."""
    if not adam_compiles(case):
        return
    kind = optimizer_class(case).__name__
    missing = case.machine is not None and case.machine.compiler is None
    path = "optimizer.params.torch_adam"
    found = "; no nvcc was found on this machine" if missing else ""
    yield Symptom(
        where="optimizer.type",
        why=f"it is DeepSpeed's {kind}, compiled when training starts{found}",
        change='"torch_adam": true among its params takes torch\'s, which is not',
        edits=(setting(path, value=True),) if missing else (),
        severity="warning" if missing else "info",
    )


def _unknown(case: Case) -> Iterator[Symptom]:
    entry = case.section("optimizer")
    if entry.get("type") and not optimizer_known(case):
        right = right_spelling(str(entry["type"]))
        yield Symptom(
            where="optimizer.type",
            why=f"neither DeepSpeed nor torch.optim has an optimizer {entry['type']!r}",
            change=right
            or "AdamW, Adam, SGD, …; others are passed as "
            "initialize(optimizer=lambda parameters: …)",
            edits=(setting("optimizer.type", right),) if right else (),
        )


def _params(case: Case) -> Iterator[Symptom]:
    kind = optimizer_class(case)
    if kind is None:
        return
    allowed = list(inspect.signature(kind.__init__).parameters)[2:]
    for key in case.section("optimizer", "params"):
        if key in allowed or (key in _TAKEN_OUT and _is_adam(case)):
            continue
        if key == "max_grad_norm":
            continue
        near = get_close_matches(key, allowed, n=1)
        yield Symptom(
            where=f"optimizer.params.{key}",
            why=f"{kind.__name__} has no parameter of this name: it raises a TypeError",
            change=f"it is called {near[0]}" if near else f"use {', '.join(allowed)}",
        )


def _is_adam(case: Case) -> bool:
    return str(case.section("optimizer").get("type", "")).lower() in ADAM


def _text(case: Case) -> Iterator[Symptom]:
    """Yield numbers in quotes, as YAML's 1e-4 becomes."""
    for section in ("optimizer", "scheduler"):
        for key, value in case.section(section, "params").items():
            if isinstance(value, str) and _is_number(value):
                path = f"{section}.params.{key}"
                yield Symptom(
                    where=path,
                    why=f"{value!r} is text, not a number",
                    change="write it without quotes",
                    edits=(setting(path, float(value)),),
                )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _planned(case: Case) -> Iterator[Symptom]:
    """Yield an optimizer that keeps another number of states than the plan priced."""
    if not case.plan or "type" not in case.section("optimizer"):
        return
    name = str(case.section("optimizer")["type"])
    momentum = case.section("optimizer", "params").get("momentum")
    key = "sgd-momentum" if name.lower() == "sgd" and momentum else name.lower()
    planned = str(case.plan["options"]["optimizer"]).lower().replace("_", "-")
    states = OPTIMIZER_STATES.get(key)
    if states is not None and states != OPTIMIZER_STATES[planned]:
        yield Symptom(
            where="optimizer.type",
            why=f"{name} keeps {states} states for a parameter; the plan counted "
            f"{OPTIMIZER_STATES[planned]} ({planned})",
            change=f'partition(…, optimizer="{key}")',
        )


RULES = (
    Rule(code="clipping-place", severity="error", look=_clipping_place),
    Rule(code="clipping-default", severity="warning", look=_clipping_default),
    Rule(code="clipping-norm", severity="warning", look=_clipping_norm),
    Rule(code="adam-mode", severity="warning", look=_adam_mode),
    Rule(code="adam-compiles", severity="info", look=_compiles),
    Rule(code="optimizer-unknown", severity="error", look=_unknown),
    Rule(code="optimizer-params", severity="error", look=_params),
    Rule(code="number-as-text", severity="error", look=_text),
    Rule(code="plan-optimizer", severity="warning", look=_planned),
)
