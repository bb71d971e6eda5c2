"""What the user asked for, checked once and then passed around whole."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from partitioner.cluster import Cluster, parse_cluster
from partitioner.errors import OptionError
from partitioner.solve.parts import Device
from partitioner.solve.problem import Objective, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.solve.problem import Checkpointing

__all__ = ["Options", "parse_bytes", "parse_devices"]

Solver = Literal["cbc", "highs"]

MICRO_BATCHES_PER_STAGE = 4
"""The default number of micro-batches is this times the stages: the bubble is then
below a fifth (Huang et al., GPipe, NeurIPS 2019, section 2.3)."""

_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked arguments of ``partition()``."""

    stages: int
    micro_batches: int
    memory_limit_bytes: int | None
    optimizer: str
    checkpointing: Checkpointing
    schedule: Schedule
    solver: Solver
    gap: float
    time_limit_s: float
    objective: Objective = "step"
    devices: tuple[Device, ...] = ()
    cluster: Cluster | None = None
    replicas: int = 1
    zero_stage: int = 0
    offload_optimizer: bool = False
    cuda_graphs: bool = False

    @classmethod
    def checked(
        cls,
        *,
        stages: Any,
        micro_batches: Any,
        memory_limit: Any,
        optimizer: Any,
        checkpointing: Any,
        schedule: Any,
        solver: Any,
        gap: Any,
        time_limit_s: Any,
        objective: Any = "step",
        devices: Any = (),
        cluster: Any = None,
        replicas: Any = None,
        zero_stage: Any = 0,
        offload_optimizer: Any = False,
        cuda_graphs: Any = False,
    ) -> Options:
        """Check every argument.

        Args:
            stages: Number of pipeline stages, at least 1.
            micro_batches: Micro-batches of one step; None: four times the stages.
            memory_limit: Bytes, or text like ``"24GiB"``; None: no limit given.
            optimizer: Name of the optimizer whose states take memory.
            checkpointing: ``"none"``, ``"auto"`` or ``"all"``.
            schedule: ``"1f1b"``, ``"eager-1f1b"`` or ``"dualpipev"``.
            solver: ``"cbc"`` or ``"highs"``.
            gap: Relative distance from the optimum at which to stop, 0 to 1.
            time_limit_s: Seconds for the solver.
            objective: ``"step"`` or ``"bottleneck"``.
            devices: One mapping per pipeline rank, see `parse_devices`.
            cluster: Which nodes they stand on, see `parse_cluster`; None: one.
            replicas: Pipelines side by side; None: the cluster's, or one.
            zero_stage: DeepSpeed's ZeRO, 0 or 1.
            offload_optimizer: Keep the optimizer's states in the host's memory.
            cuda_graphs: Stages will be replayed as CUDA graphs.

        Raises:
            OptionError: An argument is out of range.
        """
        _check_count("stages", stages)
        if micro_batches is None:
            micro_batches = MICRO_BATCHES_PER_STAGE * stages
        _check_count("micro_batches", micro_batches)
        _check_choice("checkpointing", checkpointing, ("none", "auto", "all"))
        _check_choice("schedule", schedule, get_args(Schedule))
        _check_choice("objective", objective, get_args(Objective))
        _check_choice("solver", solver, get_args(Solver))
        if not isinstance(optimizer, str):
            raise OptionError(f"optimizer is {optimizer!r}", hint='name it: "adamw"')
        if not _is_number(gap) or not 0 <= gap <= 1:
            raise OptionError(f"gap is {gap!r}", hint="give a share from 0 to 1")
        if not _is_number(time_limit_s) or not time_limit_s > 0:
            hint = "give the solver some seconds"
            raise OptionError(f"time_limit_s is {time_limit_s!r}", hint=hint)
        _check_zero(zero_stage, offload_optimizer)
        _check_graphs(cuda_graphs, zero_stage)
        nodes, replicas = _replicated(parse_cluster(cluster), replicas)
        return cls(
            stages=stages,
            micro_batches=micro_batches,
            memory_limit_bytes=parse_bytes(memory_limit),
            optimizer=optimizer,
            checkpointing=checkpointing,
            schedule=schedule,
            solver=solver,
            gap=float(gap),
            time_limit_s=float(time_limit_s),
            objective=objective,
            devices=parse_devices(devices, stages),
            cluster=nodes,
            replicas=replicas,
            zero_stage=zero_stage,
            offload_optimizer=offload_optimizer,
            cuda_graphs=cuda_graphs,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        message = f"{name} is {value!r}"
        raise OptionError(message, hint="give a whole number of at least 1")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        message = f"{name} is {value!r}"
        raise OptionError(message, hint=f"choose from {', '.join(choices)}")


def _check_zero(stage: Any, offload: Any) -> None:
    if type(offload) is not bool:
        message = f"offload_optimizer is {offload!r}"
        raise OptionError(message, hint="give True or False")
    if stage in (2, 3):
        message = f"zero_stage is {stage}: DeepSpeed's pipeline engine has ZeRO 0 or 1"
        hint = "use zero_stage=1: the stages divide weights and gradients already"
        raise OptionError(message, hint=hint)
    if type(stage) is not int or stage not in (0, 1):
        raise OptionError(f"zero_stage is {stage!r}", hint="choose from 0, 1")
    if offload and not stage:
        message = "offload_optimizer needs ZeRO: without, DeepSpeed ignores it"
        raise OptionError(message, hint="add zero_stage=1")


def _check_graphs(wanted: Any, zero_stage: int) -> None:
    if type(wanted) is not bool:
        message = f"cuda_graphs is {wanted!r}"
        raise OptionError(message, hint="give True or False")
    if wanted and zero_stage:
        message = "cuda_graphs with zero_stage=1: ZeRO takes each gradient as it comes"
        raise OptionError(message, hint="leave one of them out")


def _replicated(cluster: Cluster | None, replicas: Any) -> tuple[Cluster | None, int]:
    """Return the cluster with its replicas, and their number."""
    stated = 1 if cluster is None else cluster.replicas
    if replicas is None:
        return cluster, stated
    _check_count("replicas", replicas)
    if stated not in (1, replicas):
        message = f"replicas is {replicas}, but the cluster has {stated}"
        raise OptionError(message, hint="give the same number, or one of them")
    return cluster and replace(cluster, replicas=replicas), replicas


def parse_devices(value: Any, stages: int) -> tuple[Device, ...]:
    """Return what each pipeline rank runs on.

    Args:
        value: None or empty: all alike. Else one mapping per rank, with ``speed``
            (relative to the device that is priced for, default 1) and
            ``memory_limit`` (default: that of all); or `Device` records.
        stages: Number of ranks.

    Raises:
        OptionError: The number is not that of the ranks, or an entry is wrong.
    """
    if not value:
        return ()
    if not isinstance(value, list | tuple) or len(value) != stages:
        message = f"devices is {value!r}"
        raise OptionError(message, hint=f"give a list of {stages}, one per stage")
    return tuple(_devices(value))


def _devices(value: list[Any] | tuple[Any, ...]) -> Iterator[Device]:
    known = {"speed", "memory_limit", "memory_limit_bytes"}
    for rank, entry in enumerate(value):
        found = asdict(entry) if isinstance(entry, Device) else entry
        if not isinstance(found, dict) or not known.issuperset(found):
            message = f"devices[{rank}] is {entry!r}"
            hint = 'write {"speed": 0.5, "memory_limit": "24GiB"}'
            raise OptionError(message, hint=hint)
        speed = found.get("speed", 1.0)
        if not _is_number(speed) or not 0 < speed < math.inf:
            message = f"devices[{rank}] has speed {speed!r}"
            raise OptionError(message, hint="give a positive number")
        limit = found.get("memory_limit", found.get("memory_limit_bytes"))
        yield Device(speed=float(speed), memory_limit_bytes=parse_bytes(limit))


def parse_bytes(value: int | str | None) -> int | None:
    """Return a size in bytes.

    Args:
        value: Bytes, or a number with a unit: ``"24GiB"``, ``"24GB"``, ``"800M"``.
            With an ``i`` the unit is a power of 1024, without it a power of 1000.

    Raises:
        OptionError: It is no positive size.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            message = f"memory limit {value!r} is no size"
            raise OptionError(message, hint="write bytes, or a size like 24GiB")
        number, unit, binary = match.groups()
        base = 1024 if binary else 1000
        value = int(float(number) * base ** _POWERS[unit.upper()])
    if type(value) is not int or value <= 0:
        message = f"memory limit {value!r} is no positive size"
        raise OptionError(message, hint="write bytes, or a size like 24GiB")
    return value
