"""A model-partitioning compiler: an ``nn.Module`` becomes a balanced pipeline.

The names below load on first use (PEP 562), so that a training process which imports
only ``partitioner.runtime`` loads neither the recorder nor the solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partitioner.errors import (
    CaptureError,
    CheckpointError,
    ConflictError,
    CostError,
    DataDependentError,
    EmitError,
    ExampleInputsError,
    ForwardError,
    InfeasibleError,
    MemoryLimitError,
    OptionError,
    PartitionerError,
    PlanMismatchError,
    RuntimeGuardError,
    StageError,
    TargetError,
    TooManyStagesError,
    TraceError,
    WeightsError,
)
from partitioner.version import __version__

if TYPE_CHECKING:
    from partitioner.api import inspect_model, partition
    from partitioner.cluster import Cluster
    from partitioner.cost.given import Cost
    from partitioner.cost.measurements import Measurements
    from partitioner.cost.profiles import DeviceProfile
    from partitioner.measuring import measure_model
    from partitioner.plan import Plan
    from partitioner.runtime.weights import InitialWeights
    from partitioner.solve.replicas import Link
    from partitioner.tuning import tune
    from partitioner.verify import Verification

__all__ = [
    "CaptureError",
    "CheckpointError",
    "Cluster",
    "ConflictError",
    "Cost",
    "CostError",
    "DataDependentError",
    "DeviceProfile",
    "EmitError",
    "ExampleInputsError",
    "ForwardError",
    "InfeasibleError",
    "InitialWeights",
    "Link",
    "Measurements",
    "MemoryLimitError",
    "OptionError",
    "PartitionerError",
    "Plan",
    "PlanMismatchError",
    "RuntimeGuardError",
    "StageError",
    "TargetError",
    "TooManyStagesError",
    "TraceError",
    "Verification",
    "WeightsError",
    "__version__",
    "inspect_model",
    "measure_model",
    "partition",
    "tune",
]

_LAZY = {
    "Cluster": "partitioner.cluster",
    "Cost": "partitioner.cost.given",
    "DeviceProfile": "partitioner.cost.profiles",
    "InitialWeights": "partitioner.runtime.weights",
    "Link": "partitioner.solve.replicas",
    "Measurements": "partitioner.cost.measurements",
    "Plan": "partitioner.plan",
    "Verification": "partitioner.verify",
    "inspect_model": "partitioner.api",
    "measure_model": "partitioner.measuring",
    "partition": "partitioner.api",
    "tune": "partitioner.tuning",
}


if not TYPE_CHECKING:  # a type checker would take any name at all to be there

    def __getattr__(name: str) -> Any:
        """Import the module that holds ``name`` the first time it is asked for."""
        if name not in _LAZY:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the lazy names too."""
    return sorted({*globals(), *_LAZY})
