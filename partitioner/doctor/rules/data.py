"""Loading: workers, pinned and shared memory, the last short micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.launch import local_processes
from partitioner.doctor.rules.shared import setting
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_SAMPLING = ("data_efficiency", "data_sampling")
_WORKERS = 2
"""Worker processes that DeepSpeed's own loader starts for a device."""
_SHARED_BYTES = 2**30


def _drop_last(case: Case) -> Iterator[Symptom]:
    if case.config.get("dataloader_drop_last") is not True:
        yield Symptom(
            where="dataloader_drop_last",
            why="of deepspeed.initialize(training_data=…): its loader keeps a last, "
            "shorter micro-batch, for which the next stage waits for ever, and starts "
            "its workers anew in every epoch",
            change='engine.dataloader(…) of a plan, or "dataloader_drop_last": true',
        )


def _workers(case: Case) -> Iterator[Symptom]:
    sampling = case.section(*_SAMPLING)
    path = ".".join(_SAMPLING)
    if not sampling.get("enabled"):
        return
    if sampling.get("num_workers") == 0:
        yield Symptom(
            where=f"{path}.num_workers",
            why="no workers: the first and the last stage load between their passes, "
            "and all others wait",
            change='"num_workers": 2 or more, so that a step is ready before it starts',
        )
    if sampling.get("pin_memory") is False:
        yield Symptom(
            where=f"{path}.pin_memory",
            why="from memory that is not pinned every copy to the device makes the "
            "host wait",
            change='"pin_memory": true',
            edits=(setting(f"{path}.pin_memory", value=True),),
        )


def _cores(case: Case) -> Iterator[Symptom]:
    processes = local_processes(case)
    if not case.machine or not case.machine.cores or not processes:
        return
    cores, wanted = len(case.machine.cores), processes * (1 + _WORKERS)
    if cores < wanted:
        yield Symptom(
            where="CPU cores",
            why=f"{processes} processes with {_WORKERS} workers each are {wanted}, on "
            f"{cores} cores: steps of uneven length",
            change=f"at most {max(0, cores // processes - 1)} workers for a process "
            "(only the first and the last stage load)",
        )


def _shared(case: Case) -> Iterator[Symptom]:
    size = case.machine.shared_memory_bytes if case.machine else None
    if size is not None and size < _SHARED_BYTES:
        yield Symptom(
            where="/dev/shm",
            why=f"{format_bytes(size)}: workers pass batches through it (“Bus error”, "
            "“DataLoader worker is killed”), and NCCL messages between processes",
            change="docker run --shm-size=8g, or --ipc=host",
        )


RULES = (
    Rule(code="data-last-batch", severity="info", look=_drop_last),
    Rule(code="data-workers", severity="warning", look=_workers),
    Rule(code="data-cores", severity="warning", look=_cores),
    Rule(code="data-shared-memory", severity="warning", look=_shared),
)
