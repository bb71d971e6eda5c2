"""torch.profiler over the steps of a pipeline: what every module takes, by stage."""

from __future__ import annotations

from partitioner.runtime.profiling.module_times import ModuleTimes, StepProfile
from partitioner.runtime.profiling.steps import profile_steps

__all__ = ["ModuleTimes", "StepProfile", "profile_steps"]
