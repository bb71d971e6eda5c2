"""Flags of saving and loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.rules.shared import removal, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]


def _universal(case: Case) -> Iterator[Symptom]:
    path = "checkpoint.load_universal"
    if case.section("checkpoint").get("load_universal"):
        yield Symptom(
            where=path,
            why="DeepSpeed then loads universal checkpoints only, made by "
            "ds_to_universal; an ordinary one fails"
            + (": a plan's engine needs none" if case.plan else ""),
            change="set it for the one load after a conversion; a plan's checkpoints "
            "load on any number of stages and replicas as they are",
            edits=(setting(path, value=False),) if case.plan else (),
        )


def _local(case: Case) -> Iterator[Symptom]:
    path = "checkpoint.use_node_local_storage"
    if case.section("checkpoint").get("use_node_local_storage"):
        yield Symptom(
            where=path,
            why="each node keeps its ranks' files: a restart on other nodes, or with "
            "ranks elsewhere, finds half a checkpoint",
            change="a folder that all nodes see, and false here",
            edits=(setting(path, value=False),) if case.plan else (),
            severity="error" if case.plan else "warning",
        )


def _third_stage(case: Case) -> Iterator[Symptom]:
    path = "zero_optimization.pipeline_loading_checkpoint"
    if case.section("zero_optimization").get("pipeline_loading_checkpoint"):
        yield Symptom(
            where=path,
            why="for ZeRO-3 only, in spite of its name: loading stops at an assertion",
            change="take it out",
            edits=(removal(path),),
        )


def _elastic(case: Case) -> Iterator[Symptom]:
    path = "zero_optimization.elastic_checkpoint"
    if case.section("zero_optimization").get("elastic_checkpoint"):
        yield Symptom(
            where=path,
            why="optimizer states are written without the names that they belong to",
            change="false; a plan's checkpoints load on other replicas as they are",
            edits=(setting(path, value=False),),
            severity="error" if case.plan else "warning",
        )


def _masters(case: Case) -> Iterator[Symptom]:
    path = "zero_optimization.load_from_fp32_weights"
    given = case.section("zero_optimization").get("load_from_fp32_weights", True)
    if given is False and case.zero_stage and case.dtype != torch.float32:
        yield Symptom(
            where=path,
            why="the fp32 copies are made anew from 16-bit weights at every load: the "
            "run does not go on where it stopped",
            change="true",
            edits=(setting(path, value=True),),
        )


def _asynchronous(case: Case) -> Iterator[Symptom]:
    present = {
        "datastates_ckpt": case.config.get("datastates_ckpt", False) is not False,
        "checkpoint.writer": case.section("checkpoint").get("writer") is not None,
    }
    for path, there in present.items():
        if case.plan and there:
            yield Symptom(
                where=path,
                why="a plan's engine proves that all files are complete, and refuses "
                "to save with engines that write later",
                change="take it out",
                edits=(removal(path),),
            )


RULES = (
    Rule(code="checkpoint-universal", severity="warning", look=_universal),
    Rule(code="checkpoint-local", severity="warning", look=_local),
    Rule(code="checkpoint-stage3", severity="error", look=_third_stage),
    Rule(code="checkpoint-elastic", severity="warning", look=_elastic),
    Rule(code="checkpoint-masters", severity="warning", look=_masters),
    Rule(code="checkpoint-engine", severity="error", look=_asynchronous),
)
