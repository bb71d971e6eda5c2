"""What stages that ran alone say of a pipeline of them: estimates, and their table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.speed.results import Results

__all__ = ["estimated_step_s", "estimates_table", "in_words", "wrong_losses"]

Line = Mapping[str, Any]
"""A result: its key, what a step has, and what every stage took."""

_GIB = 2**30
_DEVICES = 2
_RELATIVE = {"bfloat16": 1.6e-2, "float32": 1.3e-6}
_ABSOLUTE = 1e-5
"""How close losses must be: what ``torch.testing`` takes for equal in these dtypes."""


def estimated_step_s(seconds: Sequence[float], micro_batches: int) -> float:
    """Return the estimated seconds of a step under 1F1B, messages left out.

    The slowest stage runs all micro-batches one after another, and one of them passes
    each other stage: m max(t) and the other t of two. If the second is the slower one
    that is exact: it has nothing to do before its first forward and after its last
    backward, which one pass of the first stage takes. If the first is, it waits for the
    second while the pipeline fills and while it drains, with work of its own between:
    at least as long as it takes, at most the difference of both longer.

    Args:
        seconds: What one micro-batch takes on each stage.
        micro_batches: Of a step.
    """
    return sum(seconds) + (micro_batches - 1) * max(seconds)


def wrong_losses(results: Results) -> list[str]:
    """Say which variants have another loss than the same model on one device.

    The last stages of all variants have run the same micro-batch with the same weights.
    """
    return [
        f"{' '.join(map(str, line['key'][:3]))}: {differs}"
        for done in _by_model(results).values()
        for line in done.values()
        if (differs := _differs(line, done))
    ]


def in_words(line: Line) -> str:
    """Return a result as it is printed when it is there."""
    model, micro_batches, variant, _ = line["key"]
    return (
        f"{model} {micro_batches} {variant}: estimated step "
        f"{_step_s(line) * 1e3:.1f} ms, loss {line['loss']:.4f}, "
        f"{line['total_s']:.0f} s in all\n" + "\n".join(_stage_rows(line))
    )


def estimates_table(results: Results) -> str:
    """Return all results as text, a block for each model."""
    blocks = [_block(*key, done) for key, done in _by_model(results).items()]
    failed = [f"failed: {' '.join(map(str, key))}" for key in sorted(results.failed())]
    return "\n\n".join([*blocks, *failed])


def _by_model(results: Results) -> dict[tuple[str, int], dict[str, Line]]:
    """Return what is done by model and micro-batches, then by variant."""
    found: dict[tuple[str, int], dict[str, Line]] = {}
    for line in results.lines():
        if line["event"] == "done":
            model, micro_batches, variant, _ = line["key"]
            found.setdefault((model, micro_batches), {})[variant] = line
    return found


def _differs(line: Line, done: Mapping[str, Line]) -> str:
    """Say how a loss differs from one device's; "" if not, or if that was not run."""
    kind = line["key"][2].partition("/")[0]
    one = done.get(f"{kind}/one-gpu") or done.get("eager/one-gpu")
    if one is None:
        return ""
    mine, whole, relative = line["loss"], one["loss"], _RELATIVE[line["dtype"]]
    if math.isclose(mine, whole, rel_tol=relative, abs_tol=_ABSOLUTE):
        return ""
    return f"the loss is {mine:.6f}, {one['key'][2]}'s is {whole:.6f}"


def _block(model: str, micro_batches: int, done: Mapping[str, Line]) -> str:
    unit = next(iter(done.values()))["unit"] + "/s"
    rows = [
        f"{model}, {micro_batches} micro-batches: ESTIMATES from stages that ran alone "
        "on one device, one by one;",
        "not a pipeline's throughput: messages, waiting and the optimizer are left out",
        f"{'':<26} {unit:>10} {'of two':>7} {'of best':>7} {'of par.':>7} "
        f"{'step':>10} {'loss':>8}  cut",
    ]
    for line in done.values():
        rows += [_row(line, done), *_stage_rows(line)]
        if differs := _differs(line, done):
            rows.append(f"  WRONG: {differs}")
    return "\n".join(rows)


def _row(line: Line, done: Mapping[str, Line]) -> str:
    variant: str = line["key"][2]
    kind = variant.partition("/")[0]
    rates = {name: _rate(each) for name, each in done.items()}
    one = rates.get(f"{kind}/one-gpu")
    by_hand = [rates[name] for name in rates if name.startswith(f"{kind}/hand-")]
    others = (
        _DEVICES * one if one else None,
        max(by_hand, default=None),
        rates.get(f"{kind}/hand-parameters"),
    )
    ratios = " ".join(_ratio(rates[variant], other) for other in others)
    return (
        f"{variant:<26} {rates[variant]:>10,.0f} {ratios} "
        f"{_step_s(line) * 1e3:>7.1f} ms {line['loss']:>8.4f}  {line['cut']}"
    )


def _stage_rows(line: Line) -> Iterator[str]:
    for number, stage in enumerate(line["stages"]):
        held = f"{stage['peak_bytes'] / _GIB:.2f} GiB" if stage["peak_bytes"] else "–"
        yield (
            f"  stage {number}: {_ms(stage, 'seconds')} (predicted "
            f"{_ms(stage, 'predicted_s')}), host {_ms(stage, 'host_s')} (predicted "
            f"{_ms(stage, 'predicted_host_s')}), peak {held}"
        )


def _ms(stage: Mapping[str, float], name: str) -> str:
    return f"{stage[name] * 1e3:.2f} ms"


def _step_s(line: Line) -> float:
    seconds = [stage["seconds"] for stage in line["stages"]]
    return estimated_step_s(seconds, line["key"][1])


def _rate(line: Line) -> float:
    items: float = line["items"]
    return items / _step_s(line)


def _ratio(rate: float, other: float | None) -> str:
    return f"{rate / other:>7.3f}" if other else f"{'':>7}"
