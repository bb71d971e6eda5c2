"""NCCL: its waiting, interfaces and paths, and the launcher's variables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.launch import local_processes, several_nodes, variable, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TIMEOUT = "DEEPSPEED_TIMEOUT"
_GROUP_MINUTES = 10
"""torch's own time-out of a NCCL group (``kProcessGroupNCCLDefaultTimeout``)."""
_NOT_READ = ("NCCL_TIMEOUT", "NCCL_TIMEOUT_MS", "TORCH_NCCL_TIMEOUT")
_RENAMED = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG")
_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_LEVELS = {
    "NCCL_P2P_LEVEL": ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "PIX", "PXB", "PHB", "SYS"),
}
"""NCCL's documentation, “Environment Variables”; numbers are an older form."""


def _launcher(case: Case) -> Iterator[Symptom]:
    missing = [name for name in _LAUNCHER if variable(case, name) is None]
    if case.machine and 0 < len(missing) < len(_LAUNCHER):
        yield Symptom(
            where=", ".join(missing),
            why="not set, though the others of a launcher are: the process would wait "
            "for a group that nobody opens",
            change="start with torchrun or deepspeed, or set all of "
            f"{', '.join(_LAUNCHER)}",
        )


def _processes(case: Case) -> Iterator[Symptom]:
    processes = case.processes or whole(variable(case, "WORLD_SIZE"))
    if processes and case.stages and processes % case.stages:
        yield Symptom(
            where="number of processes",
            why=f"{processes} processes are no multiple of {case.stages} stages",
            change=f"start {case.stages}, or {case.stages} times the replicas",
        )


def _devices(case: Case) -> Iterator[Symptom]:
    visible = variable(case, "CUDA_VISIBLE_DEVICES")
    processes = local_processes(case)
    if visible is None or not processes:
        return
    count = len([part for part in visible.split(",") if part.strip()])
    told = whole(variable(case, "LOCAL_WORLD_SIZE"))
    if told and count < told:
        yield Symptom(
            where="CUDA_VISIBLE_DEVICES",
            why=f"{count} devices for {told} processes on this machine: “invalid "
            "device ordinal”",
            change="list one device for each process, or leave it to the launcher",
        )


def _time_out(case: Case) -> Iterator[Symptom]:
    """Say how long a rank waits for another, and what changes it."""
    text = variable(case, _TIMEOUT)
    minutes = whole(text)
    if minutes and minutes > _GROUP_MINUTES:
        yield Symptom(
            where=_TIMEOUT,
            why=f"{minutes} minutes hold for the group of all ranks; the groups "
            f"between stages keep torch's {_GROUP_MINUTES} over NCCL",
            change="look for what takes so long on one rank (compiling, reading): do "
            "it before the first step",
        )


def _errors_ignored(case: Case) -> Iterator[Symptom]:
    for name in _HANDLING:
        if variable(case, name) == "0":
            yield Symptom(
                where=name,
                why="0: when a rank is lost or late, the others wait for ever",
                change=f"unset {name}",
            )


def _old_names(case: Case) -> Iterator[Symptom]:
    for name in _RENAMED:
        if variable(case, name) is not None:
            yield Symptom(
                where=name,
                why="the old name; torch still reads it, with a warning",
                change=f"TORCH_{name}",
            )
    for name in _NOT_READ:
        if variable(case, name) is not None:
            yield Symptom(
                where=name,
                why="neither torch nor NCCL reads a variable of this name",
                change="init_process_group(timeout=…) before the plan is built, or "
                f"{_TIMEOUT} in minutes; both reach the group of all ranks alone",
                severity="warning",
            )


def _interface(case: Case) -> Iterator[Symptom]:
    """Yield interfaces that this machine does not have, or that lead nowhere."""
    have = case.machine.interfaces if case.machine else None
    for name in _INTERFACES:
        text = variable(case, name)
        if not text or have is None or text.startswith("^"):
            continue
        exact = text.startswith("=") or name.startswith("GLOO")
        wanted = [part for part in text.removeprefix("=").split(",") if part]
        found = [
            one
            for one in have
            if (one in wanted if exact else one.startswith(tuple(wanted)))
        ]
        if not found:
            yield Symptom(
                where=name,
                why=f"{text!r} matches no interface of this machine "
                f"({', '.join(have)}): ranks cannot find each other",
                change="name one that all nodes share, or unset it",
            )
        elif set(found) <= {"lo"} and several_nodes(case):
            yield Symptom(
                where=name,
                why="the loopback interface leads to no other node",
                change="name the interface between the nodes",
            )


def _switched_off(case: Case) -> Iterator[Symptom]:
    slow = {
        "NCCL_P2P_DISABLE": "stages on one machine then talk through its memory, not "
        "over NVLink or PCIe",
        "NCCL_SHM_DISABLE": "stages on one machine then talk over the network",
    }
    if case.machine and case.machine.infiniband:
        devices = ", ".join(case.machine.infiniband)
        slow["NCCL_IB_DISABLE"] = f"{devices} stand idle, and nodes talk over TCP"
    for name, why in slow.items():
        if variable(case, name) == "1":
            yield Symptom(
                where=name,
                why=f"1: {why}",
                change="unset it, unless a fault of the machine needs it",
            )


def _topology(case: Case) -> Iterator[Symptom]:
    path = variable(case, "NCCL_TOPO_FILE")
    if path and not Path(path).is_file():
        yield Symptom(
            where="NCCL_TOPO_FILE",
            why=f"there is no file {path} here",
            change="unset it: NCCL then looks at the bus itself",
        )
    for name, levels in _LEVELS.items():
        text = variable(case, name)
        if text and text.upper() not in levels and not text.isdigit():
            yield Symptom(
                where=name,
                why=f"{text!r} is no level that NCCL knows",
                change=f"one of {', '.join(levels)}, or unset it",
            )


RULES = (
    Rule(code="launch-variables", severity="error", look=_launcher),
    Rule(code="launch-processes", severity="error", look=_processes),
    Rule(code="launch-devices", severity="error", look=_devices),
    Rule(code="nccl-timeout", severity="info", look=_time_out),
    Rule(code="nccl-errors", severity="error", look=_errors_ignored),
    Rule(code="nccl-names", severity="info", look=_old_names),
    Rule(code="nccl-interface", severity="error", look=_interface),
    Rule(code="nccl-switched-off", severity="warning", look=_switched_off),
    Rule(code="nccl-topology", severity="warning", look=_topology),
)
