"""DeepSpeed's version and the packages that a configuration needs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.rules.shared import setting
from partitioner.runtime.pipeline_options import OLDEST_DEEPSPEED, version_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_SCALED_AGAIN = (0, 18, 3)
"""First version that scales gradients at each earlier stage again."""
_SHARED_BUFFERS = (0, 14, 6)
"""First version with one pool of buffers for what is received both ways."""
_SAFE_STAGES = 2

_MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Sections, and the package that each imports."""


def _version(case: Case) -> Iterator[Symptom]:
    found = version_numbers(case.deepspeed)
    if found >= OLDEST_DEEPSPEED:
        return
    fault = (
        "divides gradients by the number of micro-batches again at every earlier stage"
        if found >= _SCALED_AGAIN
        else "is reported to add up the gradients of micro-batches without averaging"
    )
    needed = ".".join(map(str, OLDEST_DEEPSPEED))
    yield Symptom(
        where=f"DeepSpeed {case.deepspeed}",
        why=f"in pipelines it {fault}, without an error",
        change=f"pip install 'deepspeed>={needed}'",
    )


def _tuples(case: Case) -> Iterator[Symptom]:
    """Yield the wrong gradients of tuples, where no plan packs what crosses."""
    few = case.stages is not None and case.stages <= _SAFE_STAGES
    if case.plan or few or version_numbers(case.deepspeed) < _SHARED_BUFFERS:
        return
    yield Symptom(
        where=f"DeepSpeed {case.deepspeed}",
        why="its own pipelines of three or more stages compute wrong gradients, "
        "without an error, where a stage hands on a tuple with integers before floats "
        "or with floats of two types",
        change="hand on floats of one type first; a plan packs everything into one "
        "tensor",
    )


def _monitors(case: Case) -> Iterator[Symptom]:
    for section, package in _MONITORS.items():
        if case.section(section).get("enabled") and find_spec(package) is None:
            yield Symptom(
                where=f"{section}.enabled",
                why=f"package {package} is not installed here: DeepSpeed stops with an "
                "ImportError",
                change=f"pip install {package}, or false (a corrected copy)",
                edits=(setting(f"{section}.enabled", value=False),),
            )


RULES = (
    Rule(code="deepspeed-version", severity="error", look=_version),
    Rule(code="deepspeed-tuples", severity="info", look=_tuples),
    Rule(code="monitor-package", severity="error", look=_monitors),
)
