"""Every error that the package raises on purpose: one tree, each with what to do next.

PartitionerError
├── OptionError              an argument is out of range or contradicts another
├── TargetError              the command line's TARGET names no usable model
├── CaptureError             the forward could not be recorded
│   ├── ExampleInputsError   no example inputs, or they do not fit the signature
│   ├── ForwardError         the model's own forward raised (chained)
│   └── DataDependentError   Python read a tensor's value at the root
├── CostError                a profile or a price is unusable
├── InfeasibleError          no plan obeys the limits
│   ├── TooManyStagesError   more stages than the model can be cut into
│   ├── MemoryLimitError     a stage cannot fit the device
│   └── ConflictError        constraints of the user contradict each other
├── EmitError                a plan cannot be turned into layers
├── PlanMismatchError        a plan file and a model do not belong together
├── CheckpointError          a checkpoint cannot be written, is damaged or unusable
├── TraceError               a recorded trace cannot be read, or fits no plan
├── RuntimeGuardError        a batch, rank or version differs from the plan's
├── StageError               the model, or its loss, raised on one stage (chained there)
└── WeightsError             a parameter or buffer can be neither read nor made
"""

from __future__ import annotations

__all__ = [
    "CaptureError",
    "CheckpointError",
    "ConflictError",
    "CostError",
    "DataDependentError",
    "EmitError",
    "ExampleInputsError",
    "ForwardError",
    "InfeasibleError",
    "MemoryLimitError",
    "OptionError",
    "PartitionerError",
    "PlanMismatchError",
    "RuntimeGuardError",
    "StageError",
    "TargetError",
    "TooManyStagesError",
    "TraceError",
    "WeightsError",
]


class PartitionerError(Exception):
    """Base of all errors; ``hint`` says what the user can do.

    Args:
        message: What was found, where, and the limit it breaks.
        hint: What to change; shown on a line of its own.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, followed by the hint if there is one."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class OptionError(PartitionerError, ValueError):
    """An argument is out of range or contradicts another."""


class TargetError(PartitionerError):
    """The command line's TARGET names no usable model."""


class CaptureError(PartitionerError):
    """The forward could not be recorded."""


class ExampleInputsError(CaptureError):
    """There are no example inputs, or they do not fit the forward's signature."""


class ForwardError(CaptureError):
    """The model's own forward raised on the example inputs (the cause is chained)."""


class DataDependentError(CaptureError):
    """Python code read a value that depends on an input or a parameter.

    Args:
        message: What was read.
        hint: What to change.
        module_path: The smallest enclosing module call; empty for the root.
        source: ``file:line`` of the read.
    """

    def __init__(
        self, message: str, *, hint: str = "", module_path: str = "", source: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.module_path = module_path
        self.source = source


class CostError(PartitionerError):
    """A device profile or a price is unusable."""


class InfeasibleError(PartitionerError):
    """No plan obeys the limits that were given."""


class TooManyStagesError(InfeasibleError):
    """More stages were asked for than the model can be cut into.

    Args:
        message: What was asked and what limits it.
        largest: The largest number of stages that can be had.
        hint: What to change.
    """

    def __init__(self, message: str, *, largest: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.largest = largest


class MemoryLimitError(InfeasibleError):
    """Some stage cannot fit the device under any plan that was found.

    Args:
        message: Which stage is over, by how much.
        stage: Index of the stage that is over by most in the best attempt.
        needed_bytes: What that stage needs.
        limit_bytes: What the device has.
        hint: What would fit.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: int,
        needed_bytes: int,
        limit_bytes: int,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes


class ConflictError(InfeasibleError):
    """Constraints of the user cannot hold together.

    Args:
        message: What conflicts.
        constraints: The fewest that conflict, in words.
        hint: What to change.
    """

    def __init__(
        self, message: str, *, constraints: tuple[str, ...], hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.constraints = constraints


class EmitError(PartitionerError):
    """A plan cannot be turned into pipeline layers."""


class PlanMismatchError(PartitionerError):
    """A plan file and a model do not belong together."""


class CheckpointError(PartitionerError):
    """A checkpoint cannot be written, is damaged, or does not hold what is needed."""


class TraceError(PartitionerError):
    """A recorded trace cannot be read, or is of another plan."""


class RuntimeGuardError(PartitionerError, RuntimeError):
    """A batch, a rank or a version differs from what the plan was made for."""


class StageError(PartitionerError, RuntimeError):
    """The model, its loss or its engine raised on one stage in the middle of a step.

    There the cause is chained; on the other ranks the message quotes it.
    """


class WeightsError(PartitionerError):
    """The values of a parameter or buffer can be neither read nor made."""
