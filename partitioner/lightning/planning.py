"""A recorded step → a plan, by the options of the strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.api import partition
from partitioner.errors import OptionError, PartitionerError
from partitioner.options import MICRO_BATCHES_PER_STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partitioner.lightning.batches import MicroBatch
    from partitioner.lightning.step import RecordedStep
    from partitioner.plan import Plan

__all__ = ["Planner"]


class Planner:
    """Plans the steps of one module.

    Args:
        stages: Their number.
        micro_batches: Of one batch; None: as many as ``partition()`` takes by default.
        options: Of :func:`partitioner.partition`.
    """

    def __init__(
        self, stages: int, micro_batches: int | None, options: Mapping[str, Any]
    ) -> None:
        self.stages = stages
        self.micro_batches = micro_batches or MICRO_BATCHES_PER_STAGE * stages
        self._options = dict(options)

    def __call__(
        self,
        step: RecordedStep,
        example: MicroBatch,
        *,
        pins: Mapping[str, int] | None = None,
        **defaults: Any,
    ) -> Plan:
        """Plan a step; to be called while it is recorded.

        Args:
            step: The step.
            example: Its first micro-batch.
            pins: The stage of each module, where that is decided.
            **defaults: Options that the user may have chosen otherwise.

        Raises:
            PartitionerError: The step cannot be recorded, or not be cut so.
        """
        chosen = {**defaults, **self._options}
        if pins is not None:
            chosen = {k: v for k, v in chosen.items() if k != "equal_stages"}
            chosen["pin"] = dict(pins)
        try:
            return partition(
                step.module,
                self.stages,
                example_inputs=dict(example),
                micro_batches=self.micro_batches,
                **chosen,
            )
        except PartitionerError as error:
            refused = _refusal(error)
            if refused is None:
                raise
            raise refused from error


def _refusal(error: BaseException) -> OptionError | None:
    """Return what the step itself was refused for, from below the recorder's error."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, OptionError):
        cause = cause.__cause__
    return cause
