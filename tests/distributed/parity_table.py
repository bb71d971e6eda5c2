"""Train every model of the zoo as a pipeline; ``make parity`` prints the table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from tests.distributed.zoo_compare import Row, rows_of
from tests.distributed.zoo_original import reference
from tests.distributed.zoo_runs import MODELS, Run, Task

__all__ = ["BF16", "LARGEST", "runs_in_bf16", "runs_of"]

GROUPS = {"2": 2, "3": 3, "bf16": 2}
"""What is trained → on how many stages."""
RECOMPUTED = {2: False, 3: True}
"""Whether all stages are recomputed, by their number."""

LARGEST: dict[str, int] = {
    "moving average": 2,
    "two parameters in one storage": 1,
    "one module under two names": 2,
    "no parameters": 2,
    "python cache": 2,
    "torch noise": 2,
    "straight through": 2,
    "unusual operators": 2,
    "returns tensor": 2,
    "returns tuple": 2,
    "returns list": 2,
    "returns dict": 2,
    "returns dataclass": 2,
    "returns named tuple": 2,
    "returns nested": 2,
    "returns none and numbers": 2,
    "returns one tensor twice": 2,
    "returns view and base": 2,
    "returns several results of one operator": 2,
    "positional inputs": 2,
    "default inputs": 2,
    "variable positional inputs": 1,
    "writes its input": 2,
    "opt with layer drop": 1,
    "bart with layer drop": 2,
    "wav2vec2 with layer drop": 2,
    "qwen-2.5-vl": 2,
}
"""Models that have fewer units with a parameter of their own than stages →
how many: two layers, or one that runs as a whole and a head."""

BF16 = (
    "complex rotary",
    "deepseek-v3",
    "flux",
    "gemma-3",
    "llama with labels",
    "mistral",
    "parameter list and dict",
    "passes structures",
    "recurrent cells",
    "swin",
)
"""Models that are trained with ZeRO-1 in bfloat16 on two replicas of two stages."""


def runs_of(names: Sequence[str], stages: int) -> list[Run]:
    """Return one run in float32 for each model."""
    return [
        Run(
            task=Task(name=name),
            stages=stages,
            recomputed=RECOMPUTED[stages],
            seeded=reference(Task(name=name)).draws,
        )
        for name in names
    ]


def runs_in_bf16(names: Sequence[str]) -> list[Run]:
    """Return a run with ZeRO-1 on two replicas of two stages for each model."""
    tasks = [Task(name=name, bf16=True, rounded=True, replicas=2) for name in names]
    return [Run(task=task, stages=2, zero=1) for task in tasks]


def check_refusal(row: Row) -> None:
    """Note where a model was refused that should not be, or for another reason."""
    largest = LARGEST.get(row.run.task.name, row.run.stages)
    expected = ""
    if largest < row.run.stages:
        expected = f"can be cut into at most {largest}: every stage needs a parameter"
    if bool(expected) != bool(row.refused) or expected not in row.refused:
        told = row.refused or "not refused"
        row.faults.append(f"{told}, not {expected or 'trained'}")


def table(rows: Sequence[Row]) -> Table:
    """Return one line for each run."""
    models = len({row.run.task.name for row in rows})
    found = Table(title=f"{models} models as pipelines", header_style="bold")
    found.add_column("Model")
    for name in (
        "Stages × replicas",
        "Loss error",
        "Parameters",
        "Buffers",
        "Limit",
        "Seconds",
    ):
        found.add_column(name, justify="right")
    for row in rows:
        found.add_row(*_cells(row), style="red" if row.faults else None)
    return found


def _cells(row: Row) -> list[str]:
    task = row.run.task
    name = f"{task.name}, bf16" if task.bf16 else task.name
    where = f"{row.run.stages} × {task.replicas}"
    if row.refused:
        most = LARGEST.get(task.name, 0)
        return [name, where, f"at most {most}", "–", "–", "–", "–"]
    errors = (row.loss_error, row.parameter_error, row.buffer_error)
    limits = dict.fromkeys([row.loss_limit, row.parameter_limit])
    return [
        name,
        where,
        *(f"{error:.0e}" for error in errors),
        ", ".join(f"{limit:.0e}" for limit in limits),
        f"{row.seconds:.1f}",
    ]


def main() -> int:
    """Train all models, or those whose names hold a word; 1 if one failed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--only", action="append", choices=GROUPS)
    options = parser.parse_args()

    def chosen(names: Iterable[str]) -> list[str]:
        words = options.words
        return [name for name in names if not words or any(w in name for w in words)]

    groups = [
        runs_in_bf16(chosen(BF16))
        if group == "bf16"
        else runs_of(chosen(MODELS), stages)
        for group, stages in GROUPS.items()
        if group in (options.only or GROUPS)
    ]
    console = Console()
    rows = []
    for row in (row for runs in groups if runs for row in rows_of(runs)):
        rows.append(row)
        check_refusal(row)
        for fault in row.faults:
            console.print(f"{row.run}: {fault}", style="red", markup=False)
    console.print(table(rows))
    console.print("at most n: no more stages have a parameter of their own")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
