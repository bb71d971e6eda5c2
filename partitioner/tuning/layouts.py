"""Number of GPUs → every way to lay one model out on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.options import Options
    from partitioner.solve.problem import Schedule

__all__ = ["Layout", "layouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Replicas of a pipeline, side by side; the grid of DeepSpeed's topology."""

    stages: int = 1
    replicas: int = 1
    schedule: Schedule = "1f1b"

    @property
    def gpus(self) -> int:
        """Return how many GPUs it takes."""
        return self.stages * self.replicas

    @property
    def zero_stage(self) -> int:
        """ZeRO-1 wherever there is somebody to share the optimizer's states with."""
        return int(self.replicas > 1)

    @property
    def name(self) -> str:
        """Return what reports call it."""
        if self.gpus == 1:
            return "1 GPU"
        if self.stages == 1:
            return f"data parallel × {self.replicas}"
        beside = f" × {self.replicas}" if self.replicas > 1 else ""
        schedule = "" if self.schedule == "1f1b" else f", {self.schedule}"
        return f"{self.stages} stages{beside}{schedule}"

    def micro_batches(self, batch: int, samples: int) -> int:
        """Return how many micro-batches a replica has in a step.

        Args:
            batch: Samples of one step, over all replicas.
            samples: Samples of one micro-batch.

        Raises:
            OptionError: The batch cannot be shared out in whole micro-batches.
        """
        share = samples * self.replicas
        if batch % share:
            raise OptionError(
                f"{batch} samples cannot be shared by {self.replicas} replicas in "
                f"micro-batches of {samples}",
                hint=f"use a batch that is a multiple of {share}",
            )
        return batch // share

    def options(self, asked: Options, batch: int, samples: int) -> Options:
        """Return what to plan with.

        Args:
            asked: The options of all layouts; the cluster's replicas do not count.
            batch: As for :meth:`micro_batches`.
            samples: As for :meth:`micro_batches`.

        Raises:
            OptionError: The batch cannot be shared out in whole micro-batches.
        """
        return replace(
            asked,
            stages=self.stages,
            micro_batches=self.micro_batches(batch, samples),
            schedule=self.schedule,
            cluster=asked.cluster and replace(asked.cluster, replicas=self.replicas),
            replicas=self.replicas,
            zero_stage=self.zero_stage,
        )


def layouts(gpus: int) -> Iterator[Layout]:
    """Yield one GPU, then every layout that takes all of them.

    DeepSpeed's grid is uniform: stages times replicas is the number of GPUs.
    """
    yield Layout()
    if gpus > 1:
        yield Layout(replicas=gpus)
    schedules: tuple[Schedule, ...] = ("1f1b", "dualpipev")
    for stages in range(2, gpus + 1):
        if gpus % stages == 0:
            for schedule in schedules:
                replicas = gpus // stages
                yield Layout(stages=stages, replicas=replicas, schedule=schedule)
