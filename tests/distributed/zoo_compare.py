"""How far pipelines are from their originals, launched as few times as can be."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.distributed.launch import LaunchError, launch
from tests.distributed.zoo_original import Reference, reference
from tests.distributed.zoo_pipeline import LIMIT_S, train_stages
from tests.distributed.zoo_runs import Outcome, Run

__all__ = ["TOLERANCE", "Row", "rows_of"]

TOLERANCE = 1e-5
"""Largest error in float32, relative to the larger of 1 and what is compared with."""
SAME_LOSS = 1e-6
"""Relative error of the first step's loss, before anything was trained: in bf16 as well
both compute the same numbers, and average them in float32."""

ROUNDINGS = 2
"""How much oftener than in one process a gradient is rounded to bf16."""


@dataclass(kw_only=True)
class Row:
    """One run: how far it is from the original, and how far it may be."""

    run: Run
    refused: str = ""
    loss_error: float = 0.0
    parameter_error: float = 0.0
    buffer_error: float = 0.0
    loss_limit: float = TOLERANCE
    parameter_limit: float = TOLERANCE
    buffer_limit: float = TOLERANCE
    recomputed: int = 0
    """Segments that run again during backward."""
    ties: int = 0
    """Parameters of which several stages hold a copy."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def rows_of(runs: Sequence[Run]) -> Iterator[Row]:
    """Train all runs in one launch; after a fault the rest in another.

    Args:
        runs: All of one number of processes.
    """
    (world,) = {run.stages * run.task.replicas for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        done = 0
        while done < len(runs):
            fault = _launch(runs, done, world, folder)
            for number in range(done, len(runs)):
                done = number + 1
                found = _read(Path(folder), number, world)
                if all(isinstance(each, Outcome) for each in found):
                    yield _row(runs[number], found)
                    continue
                told = [each for each in found if isinstance(each, str)]
                yield Row(run=runs[number], faults=told or [fault])
                break


def _launch(runs: Sequence[Run], first: int, world: int, folder: str) -> str:
    """Return what ended the launch before all runs were done."""
    limit_s = LIMIT_S + 30.0 * (len(runs) - first)
    try:
        launch(world, train_stages, runs, first, folder, timeout_s=limit_s)
    except LaunchError as error:
        return str(error)
    return ""


def _read(folder: Path, number: int, ranks: int) -> list[Any]:
    """Return each rank's outcome, its traceback, or None if it got to neither."""
    places = [folder / f"{number}-{rank}" for rank in range(ranks)]
    return [
        pickle.loads(place.read_bytes()) if place.exists() else None for place in places
    ]


def _row(run: Run, ranks: Sequence[Outcome]) -> Row:
    """Compare what the ranks hold with the original trained in one process."""
    row = Row(run=run, seconds=max(rank.seconds for rank in ranks))
    told = {rank.refused for rank in ranks}
    if told != {""}:
        row.refused = "; ".join(sorted(told))
        return row
    expected = reference(run.task)
    first = [abs(rank.losses[0] / expected.losses[0] - 1) for rank in ranks]
    if not max(first) <= SAME_LOSS:
        row.faults.append(f"the first loss is off by {max(first):.1e}")
    if run.task.bf16:
        bf16, expected = expected, reference(replace(run.task, bf16=False))
        _set_limits(row, expected, bf16)
    for rank in ranks:
        _compare(row, expected, rank)
    row.faults += [*_lost(expected, ranks), *_other_modes(expected, ranks)]
    row.recomputed = sum(rank.recomputed for rank in ranks)
    if bool(row.recomputed) != run.recomputed:
        row.faults.append(f"{row.recomputed} segments are recomputed")
    row.ties = _check_ties(row, expected, ranks)
    return row


def _check_ties(row: Row, expected: Reference, ranks: Sequence[Outcome]) -> int:
    """Compare the copies of each parameter, bit by bit; return how many are tied."""
    copies: dict[str, list[Tensor]] = {}
    for rank in ranks:
        for name, value in rank.parameters.items():
            copies.setdefault(expected.aliases[name], []).append(value)
    for name, found in copies.items():
        if not all(torch.equal(found[0], other) for other in found[1:]):
            row.faults.append(f"the copies of {name} differ")
    held = [{expected.aliases[name] for name in rank.parameters} for rank in ranks]
    stages = held[:: row.run.task.replicas]
    return sum(sum(name in stage for stage in stages) > 1 for name in copies)


def _other_modes(expected: Reference, ranks: Sequence[Outcome]) -> list[str]:
    """Say which of the user's modules is in another mode than in the original."""
    return [
        f"{path} is in {'train' if training else 'eval'} mode"
        for rank in ranks
        for path, (kind, training) in rank.modes.items()
        if expected.modes.get(path) == (kind, not training)
    ]


def _set_limits(row: Row, fp32: Reference, bf16: Reference) -> None:
    """Measure how far bf16 takes the original itself, in one process, from float32.

    A gradient is rounded up to twice as often in a pipeline, and a loss inherits that
    from the weights (see docs/parity.md). A pipeline's loss is a mean of several.
    """
    pairs = zip(fp32.each, bf16.each, strict=True)
    worst = max(abs(b - a) / max(1.0, abs(a)) for a, b in pairs)
    row.loss_limit = ROUNDINGS * worst
    errors = _errors(fp32.parameters, bf16.parameters)
    row.parameter_limit = ROUNDINGS * max(errors.values())
    row.buffer_limit = max(_errors(fp32.buffers, bf16.buffers).values(), default=0.0)
    if not row.parameter_limit <= fp32.movement / 4:
        limit, moved = row.parameter_limit, fp32.movement
        row.faults.append(f"a limit of {limit:.1e}, and training moves by {moved:.1e}")


def _compare(row: Row, expected: Reference, rank: Outcome) -> None:
    loss = _loss_error(expected, rank)
    if not loss <= row.loss_limit:
        row.faults.append(f"losses {rank.losses}, not {expected.losses}")
    parameters = _errors(expected.parameters, rank.parameters)
    mine = {n: b for n, b in rank.buffers.items() if n in expected.buffers}
    buffers = _errors(expected.buffers, mine)
    row.faults += [
        f"{name} is off by {error:.1e}"
        for errors, limit in (
            (parameters, row.parameter_limit),
            (buffers, row.buffer_limit),
        )
        for name, error in errors.items()
        if not error <= limit
    ]
    row.loss_error = max(row.loss_error, loss)
    row.parameter_error = max(row.parameter_error, *parameters.values())
    row.buffer_error = max([row.buffer_error, *buffers.values()])


def _loss_error(expected: Outcome, found: Outcome) -> float:
    pairs = zip(
        [*expected.losses, expected.evaluated],
        [*found.losses, found.evaluated],
        strict=True,
    )
    return max(abs(b - a) / max(1.0, abs(a)) for a, b in pairs)


def _lost(expected: Reference, ranks: Sequence[Outcome]) -> list[str]:
    """Say what training changes in the original and no rank holds."""
    held = {n for r in ranks for n in (*r.parameters, *r.buffers)}
    held |= {expected.aliases[name] for name in held if name in expected.aliases}
    moved = {expected.aliases.get(name, name) for name in expected.moved}
    faults = [f"no rank holds {name}" for name in sorted(moved - held)]
    if not any(name in expected.parameters for name in expected.moved):
        faults.append("nothing was trained")
    return faults


def _errors(expected: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    return {name: _error(expected[name], value) for name, value in found.items()}


def _error(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.to(wide), found.to(wide)
    return ((a - b).abs().max() / a.abs().max().clamp(min=1.0)).item()
