"""Runs the tables that were asked for, prints them and writes what they found."""

from __future__ import annotations

import argparse
import json
import resource
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.plan.public import perturbed_rows, public_rows, solved_json
from benchmarks.plan.synthetic import checkpointing_rows, large_graph
from partitioner.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

TABLES = ("workloads", "perturbed", "traced", "large", "checkpointing")
PUBLIC = ("workloads", "perturbed")

Found = dict[str, Any]


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description="Measure the planner.")
    parser.add_argument("--data", type=Path, help="folder of the public workloads")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--solver", choices=("highs", "cbc"), default="highs")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--raw-seconds", type=float, default=120.0, help="0: no raw program"
    )
    options = parser.parse_args()

    console = Console(width=150)
    tables: dict[str, Callable[[argparse.Namespace, Console], Found]] = {
        "workloads": _workloads,
        "perturbed": _perturbed,
        "traced": _traced,
        "large": _large,
        "checkpointing": _checkpointing,
    }
    found: Found = {"versions": {n: version(n) for n in ("pulp", "highspy", "numpy")}}
    for name in options.only or TABLES:
        if name in PUBLIC and options.data is None:
            console.print(f"{name}: skipped, no --data was given")
            continue
        found[name] = tables[name](options, console)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def _cpu_s() -> float:
    """Return CPU seconds of this process and of the solvers it has started."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _workloads(options: argparse.Namespace, console: Console) -> Found:
    gap = 0.0 if options.solver == "highs" else 0.01
    table = _table(
        f"Public workloads, {options.solver}, gap {gap}: load over known optimum",
        *("workload", "optimum", "ours", "bound", "gap", "s", "CPU s", "found by"),
        *("DeepSpeed", "expert", "raw", "raw bound", "raw s"),
    )
    written, wall_s, cpu_s = {}, 0.0, 0.0
    for row in public_rows(
        options.data, options.solver, gap, options.raw_seconds, _cpu_s
    ):
        best = row.known.load
        raw = ("–", "–", "–")
        if row.raw is not None:
            raw = (
                _ratio(row.raw.objective, best, none="none"),
                _ratio(row.raw.bound, best),
                f"{row.raw_s:.1f}",
            )
        table.add_row(
            row.workload.name,
            f"{best:.4f}",
            _ratio(row.load, best, 6),
            _ratio(row.found.bound_s, best, 6),
            f"{row.found.gap:.1e}",
            f"{row.found.solve_s:.2f}",
            f"{row.cpu_s:.2f}",
            row.found.solver,
            _ratio(row.deepspeed, best),
            "–" if row.expert is None else _ratio(row.expert, best),
            *raw,
        )
        wall_s += row.found.solve_s
        cpu_s += row.cpu_s
        written[row.workload.name] = solved_json(row)
    console.print(table)
    console.print(f"all workloads: {wall_s:.1f} s, {cpu_s:.1f} s of CPU")
    return written


def _ratio(
    load: float, best: float, digits: int = 3, *, none: str = "too large"
) -> str:
    return none if load == float("inf") else f"{load / best:.{digits}f}"


def _perturbed(options: argparse.Namespace, console: Console) -> Found:
    table = _table(
        f"Costs perturbed by up to 20 %, {options.seeds} seeds, HiGHS at gap 0",
        *("workload", "largest gap", "above raw", "below raw's bound"),
        *("raw proven", "s", "raw s"),
    )
    rows = list(perturbed_rows(options.data, options.seeds, options.raw_seconds))
    for row in rows:
        table.add_row(
            row.name,
            f"{row.gap:.1e}",
            f"{row.above_raw:+.1e}",
            f"{row.below_bound:+.1e}",
            f"{row.raw_proven}/{row.seeds}",
            f"{row.seconds:.1f}",
            f"{row.raw_s:.1f}",
        )
    console.print(table)
    return {row.name: vars(row) for row in rows}


def _traced(_options: argparse.Namespace, console: Console) -> Found:
    from benchmarks.plan.traced import traced_rows  # noqa: PLC0415 -- loads torch

    table = _table(
        "Traced models, CBC, gap 1 %, memory slack",
        *("model", "units", "stages", "gap", "s", "CPU s", "found by", "proof"),
    )
    rows = []
    for row in traced_rows("cbc", _cpu_s):
        rows.append(vars(row))
        table.add_row(
            row.model,
            f"{row.units:,}",
            f"{row.stages}",
            f"{row.gap:.2%}",
            f"{row.solve_s:.1f}",
            f"{row.cpu_s:.1f}",
            row.solver,
            row.proof,
        )
    console.print(table)
    return {"rows": rows}


def _large(options: argparse.Namespace, console: Console) -> Found:
    problem = large_graph()
    started_s, before_s = time.perf_counter(), _cpu_s()
    found = solve(problem, solver=options.solver)
    wall_s, cpu_s = time.perf_counter() - started_s, _cpu_s() - before_s
    console.print(
        f"{len(problem.units):,} units on {problem.stages} stages: gap {found.gap:.3%}"
        f" in {wall_s:.1f} s, {cpu_s:.1f} s of CPU ({found.proof})"
    )
    return {"units": len(problem.units), "gap": found.gap, "s": wall_s, "cpu_s": cpu_s}


def _checkpointing(_options: argparse.Namespace, console: Console) -> Found:
    table = _table(
        "Joint checkpointing, CBC: step time beside balance, then checkpoint",
        *("model", "limit", "joint", "balanced", "gain", "gap", "recomputed", "s"),
    )
    rows = list(checkpointing_rows("cbc"))
    gains = []
    for row in rows:
        gain = 1 - row.joint.objective_s / row.balanced_s
        gains += [gain] if row.balanced_s < float("inf") else []
        table.add_row(
            row.name,
            f"{row.factor}",
            f"{row.joint.objective_s:.2f}",
            f"{row.balanced_s:.2f}",
            f"{gain:.1%}" if row.balanced_s < float("inf") else "nothing fits",
            f"{row.joint.gap:.2%}",
            f"{row.recomputed}",
            f"{row.joint.solve_s:.1f}",
        )
    console.print(table)
    mean = sum(gains) / len(gains)
    console.print(f"mean gain {mean:.1%}, least {min(gains):.1%} ({len(gains)} cases)")
    return {"mean_gain": mean, "least_gain": min(gains)}
