"""The ``pipeline`` block: what the engine reads in it, and what it was meant to say."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

from deepspeed.pipe import PipelineModule

from partitioner.doctor.case import STAGE_KEYS
from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.rules.shared import refused, removal, setting
from partitioner.emit.ds_checks import check_recomputation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["READ", "RULES"]

READ = (
    "activation_checkpoint_interval",
    "use_reentrant",
    "pipe_partitioned",
    "grad_partitioned",
)
"""Keys that ``PipelineEngine`` reads; DeepSpeed accepts any other without a word."""

_RECOMPUTATION = (
    "activation_checkpoint_interval: N (recompute blocks of N layers); with a plan, "
    'partition(…, checkpointing="auto"), which decides block by block'
)
_STAGES = "PipelineModule(num_stages=…), or partition(model, stages=…)"
_MICRO_BATCHES = "gradient_accumulation_steps, at the top of the file"
_MEANT = {
    "activation_checkpointing": _RECOMPUTATION,
    "gradient_checkpointing": _RECOMPUTATION,
    **dict.fromkeys(STAGE_KEYS, _STAGES),
    "partition": "PipelineModule(partition_method=…); partition() finds the cuts",
    "partition_method": "PipelineModule(partition_method=…); partition() finds the "
    "cuts",
    "micro_batches": _MICRO_BATCHES,
    "num_micro_batches": _MICRO_BATCHES,
    "num_microbatches": _MICRO_BATCHES,
    "micro_batch_size": "train_micro_batch_size_per_gpu, at the top of the file",
    "schedule": "the module's class (PipelineModule, DualPipeVModule), or "
    "partition(…, schedule=…)",
    "dynamic_shape": "PipelineModule(dynamic_shape=True); the engine of "
    "plan.initialize sends new shapes by itself",
}
_ARGUMENTS = frozenset(inspect.signature(PipelineModule.__init__).parameters)


def _unread(case: Case) -> Iterator[Symptom]:
    for key in case.section("pipeline"):
        if key in READ:
            continue
        meant = _MEANT.get(key, "")
        if not meant and key in _ARGUMENTS:
            meant = f"PipelineModule({key}=…)"
        yield Symptom(
            where=f"pipeline.{key}",
            why="the pipeline engine does not read this key: it has no effect",
            change=f"it should be {meant}" if meant else "take it out",
            edits=(removal(f"pipeline.{key}"),),
        )


def _interval(case: Case) -> Iterator[Symptom]:
    path = "pipeline.activation_checkpoint_interval"
    if case.plan:
        yield from refused(
            path, partial(check_recomputation, case.parsed), removal(path)
        )


def _reentrant(case: Case) -> Iterator[Symptom]:
    """Yield recomputation that runs backward inside backward, as is the default."""
    block = case.section("pipeline")
    chosen, path = block.get("use_reentrant"), "pipeline.use_reentrant"
    if chosen is not None and not isinstance(chosen, bool):
        yield Symptom(
            where=path,
            why=f"{chosen!r} is no boolean; DeepSpeed compares with false and so takes "
            "it for true",
            change="write true or false without quotes",
            edits=(setting(path, str(chosen).lower() not in ("false", "0", "no")),),
            severity="error",
        )
    elif (
        block.get("activation_checkpoint_interval")
        and not case.plan
        and chosen
        in (
            None,
            True,
        )
    ):
        yield Symptom(
            where=path,
            why="reentrant recomputation (the default) fails where a stage begins with "
            "integers (“element 0 of tensors does not require grad”) or ends with two "
            "float tensors (“'NoneType' object is not iterable”)",
            change='"use_reentrant": false; gradients are the same',
            edits=(setting(path, value=False),),
        )


def _partitioned(case: Case) -> Iterator[Symptom]:
    for key in ("pipe_partitioned", "grad_partitioned"):
        value = case.section("pipeline").get(key, True)
        if not isinstance(value, bool):
            path = f"pipeline.{key}"
            yield Symptom(
                where=path,
                why=f"{value!r} is no boolean: the engine stops at an assertion",
                change="write true or false, or leave it out; it matters with tensor "
                "parallelism only",
                edits=(removal(path),),
            )


def _shapes(case: Case) -> Iterator[Symptom]:
    """Say what happens to inputs whose sizes the plan leaves open."""
    for spec in case.plan["inputs"] if case.plan else ():
        free = [str(dim) for dim in spec["free"]]
        if free:
            yield Symptom(
                where=f"plan: input {spec['name']}",
                why=f"its dimensions {', '.join(free)} may change from batch to batch; "
                "DeepSpeed tells the next stage its shapes once, and its own engine "
                "then waits for ever",
                change="plan.initialize(…), which tells them again, or "
                "plan.pipeline_module(dynamic_shape=True)",
            )


RULES = (
    Rule(code="pipeline-key", severity="warning", look=_unread),
    Rule(code="pipeline-interval", severity="error", look=_interval),
    Rule(code="pipeline-reentrant", severity="warning", look=_reentrant),
    Rule(code="pipeline-partitioned", severity="error", look=_partitioned),
    Rule(code="dynamic-shape", severity="info", look=_shapes),
)
