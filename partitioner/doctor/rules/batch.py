"""Batch sizes, micro-batches, and the bubble that they leave."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from partitioner.doctor.case import number
from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.rules.shared import refused, removal, setting
from partitioner.emit.ds_checks import check_micro_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES", "bubble_share", "micro_batches_for"]

_TOTAL = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_SHARES = (0.15, 0.10, 0.05)
_REPLICAS_SHOWN = (1, 2, 4)


def bubble_share(stages: int, micro_batches: int) -> float:
    """Return the idle share of a 1F1B step on equal stages, (S - 1)/(M + S - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def micro_batches_for(stages: int, share: float) -> int:
    """Return the fewest micro-batches whose bubble is at most ``share``."""
    fewest = (stages - 1) * (1 - share) / share
    return max(1, math.ceil(fewest - 1e-9))  # 0.1 is not a tenth


def _sizes(case: Case) -> tuple[int | None, int | None, int | None]:
    return tuple(number(case.config.get(k)) for k in (_TOTAL, _MICRO, _STEPS))  # type: ignore[return-value]


def _missing(case: Case) -> Iterator[Symptom]:
    sizes = (_TOTAL, _MICRO)
    if not case.plan and not any(key in case.config for key in sizes):
        yield Symptom(
            where=_MICRO,
            why=f"neither {_TOTAL} nor {_MICRO} is given: DeepSpeed stops",
            change=f'give "{_MICRO}" and "{_STEPS}"; the total follows',
        )


def _whole(case: Case) -> Iterator[Symptom]:
    for key in (_TOTAL, _MICRO, _STEPS):
        value = case.config.get(key, 1)
        if number(value) is None and value != "auto":
            yield Symptom(
                where=key,
                why=f"{value!r} is no positive whole number",
                change="write a positive whole number",
            )


def _product(case: Case) -> Iterator[Symptom]:
    """Yield a total that is not micro-batch × micro-batches × replicas."""
    total, micro, steps = _sizes(case)
    if not total or case.plan:
        return
    factor = (micro or 1) * (steps or 1) * (case.replicas or 1)
    exact = micro and steps and case.replicas
    if total == factor or (not exact and total % factor == 0):
        return
    parts = {
        f"micro-batches of {micro}": micro,
        f"{steps} of them": steps,
        f"{case.replicas} replicas": case.replicas,
    }
    by = ", ".join(text for text, value in parts.items() if value)
    redundant = bool(micro and steps)
    nearest = max(factor, total // factor * factor)
    change = (
        f"take {_TOTAL} out: DeepSpeed multiplies the others"
        if redundant
        else f"write a multiple of {factor}, like {nearest}"
    )
    yield Symptom(
        where=_TOTAL,
        why=f"{total} is not what {by} make ({factor}"
        f"{'' if exact else ', or a multiple of it'}): DeepSpeed stops",
        change=change,
        edits=(removal(_TOTAL),) if redundant else (),
    )


def _implicit(case: Case) -> Iterator[Symptom]:
    """Yield a micro-batch that nobody wrote down: it is what memory depends on."""
    total, _, steps = _sizes(case)
    if case.plan or not total or _MICRO in case.config:
        return
    count = steps or 1
    replicas = (case.replicas,) if case.replicas else _REPLICAS_SHOWN
    shown = [
        f"{total // count // r} samples on {r} replica{'s' if r > 1 else ''}"
        for r in replicas
        if total % (count * r) == 0
    ]
    size = total // count // replicas[0]
    known = case.replicas and total % (count * case.replicas) == 0
    yield Symptom(
        where=_MICRO,
        why=f"the size of a micro-batch is not given; it follows from the number of "
        f"processes: {', '.join(shown) or 'no whole number'}",
        change=f'give "{_MICRO}" and "{_STEPS}" and leave {_TOTAL} out',
        edits=(setting(_MICRO, size),) if known else (),
    )


def _planned_steps(case: Case) -> Iterator[Symptom]:
    if case.plan and number(case.config.get(_STEPS)):
        planned = int(case.plan["options"]["micro_batches"])
        check = partial(check_micro_batches, case.config, planned)
        yield from refused(_STEPS, check, setting(_STEPS, planned))


def _planned_sizes(case: Case) -> Iterator[Symptom]:
    """Yield sizes that are not those the plan was recorded and priced at."""
    if not case.plan:
        return
    total, micro, _ = _sizes(case)
    shape = case.plan["inputs"][0]["shape"]
    planned, steps = shape[0] if shape else 1, case.plan["options"]["micro_batches"]
    if micro and micro != planned:
        yield Symptom(
            where=_MICRO,
            why=f"micro-batches of {micro}, but the plan was recorded and priced at "
            f"{planned}: its seconds and bytes are not those of this run",
            change=f"partition() with example inputs of {micro} samples",
            severity="warning",
        )
    product = (micro or planned) * steps
    if not total or total == product * (case.replicas or 0):
        return
    change = (
        f"take {_TOTAL} out; it is then {product} × the replicas. For {total} samples "
        f"on one replica: partition(…, micro_batches={-(-total // product) * steps})"
    )
    whole = total % product == 0
    wanted = f"{total // product} replicas" if whole else "no whole number"
    yield Symptom(
        where=_TOTAL,
        why=f"{total} samples are {wanted} of {steps} micro-batches of "
        f"{micro or planned}"
        + (f"; there are {case.replicas}" if case.replicas else ""),
        change=change,
        edits=(removal(_TOTAL),),
        severity="error" if case.replicas or total % product else "warning",
    )


def _bubble(case: Case) -> Iterator[Symptom]:
    stages, steps = case.stages, case.micro_batches
    if not stages or not steps or stages == 1 or _dual(case):
        return
    share = bubble_share(stages, steps)
    if share <= _SHARES[-1]:
        return
    needed = ", ".join(
        f"{micro_batches_for(stages, goal)} for {goal:.0%}" for goal in _SHARES
    )
    yield Symptom(
        where=_STEPS,
        why=f"{steps} micro-batches on {stages} equal stages leave {share:.0%} of the "
        "step idle (1F1B: (S - 1)/(M + S - 1))",
        change=f"more micro-batches: {needed}; smaller ones keep the batch size"
        + ("; or plan.initialize(zero_bubble=True)" if case.plan else ""),
        severity="warning" if share > _SHARES[0] else "info",
    )


def _dual(case: Case) -> bool:
    return bool(case.plan) and case.plan["options"]["schedule"] == "dualpipev"  # type: ignore[index]


def _dual_steps(case: Case) -> Iterator[Symptom]:
    stages, steps = case.stages, case.micro_batches
    if _dual(case) and stages and steps and steps < 2 * stages:
        yield Symptom(
            where=_STEPS,
            why=f"{steps} micro-batches; DualPipeV on {stages} ranks needs at least "
            f"{2 * stages}",
            change=f"partition(…, micro_batches={2 * stages}) or more",
        )


RULES = (
    Rule(code="batch-missing", severity="error", look=_missing),
    Rule(code="batch-value", severity="error", look=_whole),
    Rule(code="batch-product", severity="error", look=_product),
    Rule(code="batch-implicit", severity="warning", look=_implicit),
    Rule(code="plan-micro-batches", severity="error", look=_planned_steps),
    Rule(code="plan-batch", severity="error", look=_planned_sizes),
    Rule(code="bubble", severity="warning", look=_bubble),
    Rule(code="dualpipev-micro-batches", severity="error", look=_dual_steps),
)
