"""Which models and variants a run is asked for: options, and what they choose."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.speed.registry import WORKLOADS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from benchmarks.speed.ours import Planner
    from benchmarks.speed.variants import Variant

__all__ = ["MODELS", "add_options", "chosen"]

MODELS = [name for name in WORKLOADS if name != "llama-7b"]
"""What fits one GPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is run, where, and where its results are kept."""
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=MODELS)
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[32])
    parser.add_argument(
        "--variants", nargs="+", default=["*"], help="patterns of names, in order"
    )
    parser.add_argument(
        "--cuts", nargs="*", type=int, help="hand-written whole-layer cuts; all"
    )
    parser.add_argument(
        "--near-planned",
        type=int,
        metavar="N",
        help="in place of --cuts: those up to N layers from the planner's",
    )
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin nothing after this"
    )
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--out", type=Path, default=Path("build/throughput"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")


def chosen(
    all_variants: Iterable[Variant], options: argparse.Namespace, planner: Planner
) -> Iterator[Variant]:
    """Yield the variants that patterns name, in that order; cuts if asked for."""
    left = list(all_variants)
    for pattern in options.variants:
        named = [each for each in left if fnmatch.fnmatch(each.name, pattern)]
        left = [each for each in left if each not in named]
        yield from (each for each in named if _is_asked_for(each, options, planner))


def _is_asked_for(
    variant: Variant, options: argparse.Namespace, planner: Planner
) -> bool:
    """Whether a variant is no whole-layer cut, or one of those that were chosen."""
    kind, _, cut = variant.name.partition("/hand-cut-")
    if not cut:
        return True
    if options.near_planned is not None:
        plan = planner.plan(compiled=kind == "compiled", whole_layers=True)
        return abs(int(cut) - planner.parts_of(plan)[1]) <= int(options.near_planned)
    return options.cuts is None or int(cut) in options.cuts
