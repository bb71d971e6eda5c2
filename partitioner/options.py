"""What the user asked for, checked once and then passed around whole."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from partitioner.solve.problem import Checkpointing

__all__ = ["Options", "parse_bytes"]

Schedule = Literal["1f1b"]
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
    ) -> Options:
        """Check every argument.

        Args:
            stages: Number of pipeline stages, at least 1.
            micro_batches: Micro-batches of one step; None: four times the stages.
            memory_limit: Bytes, or text like ``"24GiB"``; None: no limit given.
            optimizer: Name of the optimizer whose states take memory.
            checkpointing: ``"none"``, ``"auto"`` or ``"all"``.
            schedule: ``"1f1b"``.
            solver: ``"cbc"`` or ``"highs"``.
            gap: Relative distance from the optimum at which to stop, 0 to 1.
            time_limit_s: Seconds for the solver.

        Raises:
            OptionError: An argument is out of range.
        """
        _check_count("stages", stages)
        if micro_batches is None:
            micro_batches = MICRO_BATCHES_PER_STAGE * stages
        _check_count("micro_batches", micro_batches)
        _check_choice("checkpointing", checkpointing, ("none", "auto", "all"))
        _check_choice("schedule", schedule, get_args(Schedule))
        _check_choice("solver", solver, get_args(Solver))
        if not isinstance(optimizer, str):
            raise OptionError(f"optimizer is {optimizer!r}", hint='name it: "adamw"')
        if not _is_number(gap) or not 0 <= gap <= 1:
            raise OptionError(f"gap is {gap!r}", hint="give a share from 0 to 1")
        if not _is_number(time_limit_s) or not time_limit_s > 0:
            hint = "give the solver some seconds"
            raise OptionError(f"time_limit_s is {time_limit_s!r}", hint=hint)
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
