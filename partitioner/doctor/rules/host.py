"""Jitter: what makes equal steps take unequal time on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.launch import local_processes, variable, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case
    from partitioner.doctor.machine import Machine

__all__ = ["RULES"]

_NO_LIMIT = -1
_SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")


def _blocking(case: Case) -> Iterator[Symptom]:
    if variable(case, "CUDA_LAUNCH_BLOCKING") == "1":
        yield Symptom(
            where="CUDA_LAUNCH_BLOCKING",
            why="1: the host waits for every kernel; a step takes many times as long",
            change="unset it outside of a search for a fault",
        )


def _threads(case: Case) -> Iterator[Symptom]:
    threads = whole(variable(case, "OMP_NUM_THREADS"))
    processes = local_processes(case)
    cores = len(case.machine.cores or ()) if case.machine else 0
    if threads and processes and cores and threads * processes > cores:
        yield Symptom(
            where="OMP_NUM_THREADS",
            why=f"{threads} threads in each of {processes} processes on {cores} cores: "
            "they wait for each other",
            change=f"OMP_NUM_THREADS={max(1, cores // processes)}",
        )


def _affinity(case: Case) -> Iterator[Symptom]:
    """Say on which NUMA nodes the GPUs are, and whether this process may run there."""
    machine = case.machine
    nodes = _gpu_nodes(machine) if machine else {}
    if not machine or not nodes or not machine.node_cores or not machine.cores:
        return
    shown = ", ".join(
        f"{count} on node {node}" for node, count in sorted(nodes.items())
    )
    allowed = set(machine.cores)
    far = [n for n in sorted(nodes) if not allowed & {*machine.node_cores.get(n, ())}]
    if far:
        yield Symptom(
            where="CPU affinity",
            why=f"GPUs are {shown}, but this process may not run on the cores of node "
            f"{', '.join(map(str, far))}: launches and copies cross between nodes",
            change="start without a binding, or bind each rank to its GPU's node",
        )
    elif len(nodes) > 1:
        yield Symptom(
            where="CPU affinity",
            why=f"GPUs are {shown}; a rank that runs on the other node launches and "
            "copies more slowly, and from time to time",
            change="deepspeed --bind_cores_to_rank, or numactl --cpunodebind for each "
            "rank",
            severity="info",
        )


def _gpu_nodes(machine: Machine) -> dict[int, int]:
    found: dict[int, int] = {}
    for gpu in machine.accelerators or ():
        if gpu.numa_node is not None:
            found[gpu.numa_node] = found.get(gpu.numa_node, 0) + 1
    return found


def _lanes(case: Case) -> Iterator[Symptom]:
    """Yield narrow links. Not slow ones: an idle GPU lowers its link's speed itself."""
    for gpu in (case.machine.accelerators or ()) if case.machine else ():
        if gpu.width and gpu.max_width and gpu.width < gpu.max_width:
            yield Symptom(
                where=f"GPU {gpu.address}",
                why=f"its PCIe link has {gpu.width} of {gpu.max_width} lanes: batches "
                "and messages that take it are as much slower",
                change="another slot, or look for a riser or switch that limits it",
            )


def _clock(case: Case) -> Iterator[Symptom]:
    governor = case.machine.governor if case.machine else None
    if governor in _SLOW_GOVERNORS:
        yield Symptom(
            where="CPU governor",
            why=f"{governor!r}: cores that wait are slowed down, and launch kernels "
            "late afterwards",
            change="cpupower frequency-set -g performance",
        )


def _balancing(case: Case) -> Iterator[Symptom]:
    machine = case.machine
    if machine and machine.numa_balancing and len(machine.node_cores or ()) > 1:
        yield Symptom(
            where="/proc/sys/kernel/numa_balancing",
            why="the kernel moves memory between NUMA nodes as it runs, and stops "
            "processes for it",
            change="sysctl kernel.numa_balancing=0",
        )


def _locked(case: Case) -> Iterator[Symptom]:
    machine = case.machine
    limit = machine.locked_memory_bytes if machine else None
    if machine and machine.infiniband and limit not in (None, _NO_LIMIT):
        yield Symptom(
            where="ulimit -l",
            why=f"{limit} bytes may be locked; InfiniBand registers its buffers as "
            "locked memory, and NCCL fails to",
            change="ulimit -l unlimited (docker run --ulimit memlock=-1)",
        )


def _unknown(case: Case) -> Iterator[Symptom]:
    if case.machine and case.machine.unknown:
        yield Symptom(
            where="this machine",
            why=f"could not be read: {', '.join(case.machine.unknown)}; nothing is "
            "said of these",
            change="run it on the machine itself, outside of a container",
        )


RULES = (
    Rule(code="launch-blocking", severity="warning", look=_blocking),
    Rule(code="threads", severity="warning", look=_threads),
    Rule(code="numa-affinity", severity="warning", look=_affinity),
    Rule(code="pcie-lanes", severity="warning", look=_lanes),
    Rule(code="cpu-governor", severity="info", look=_clock),
    Rule(code="numa-balancing", severity="info", look=_balancing),
    Rule(code="locked-memory", severity="warning", look=_locked),
    Rule(code="machine-unknown", severity="info", look=_unknown),
)
