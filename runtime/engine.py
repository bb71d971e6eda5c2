"""DeepSpeed's pipeline engine, with what a plan knows about its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deepspeed
from deepspeed.runtime.pipe.engine import PipelineEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partitioner.runtime.pipeline_module import PartitionedPipelineModule

__all__ = ["PlanEngine", "initialize"]


def initialize(
    module: PartitionedPipelineModule,
    *,
    config: Mapping[str, Any],
    batch_fn: Callable[[Any], Any],
    **deepspeed_kwargs: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return what ``deepspeed.initialize`` returns, with a :class:`PlanEngine`.

    Args:
        module: This rank's stage.
        config: The whole DeepSpeed configuration.
        batch_fn: Turns a batch of the user's into what both ends of the pipeline take.
        **deepspeed_kwargs: For ``deepspeed.initialize``.
    """
    engine, *others = deepspeed.initialize(
        model=module, config=dict(config), **deepspeed_kwargs
    )
    # DeepSpeed chooses the class by the module's and offers no way to name another.
    engine.__class__ = PlanEngine
    engine.set_batch_fn(batch_fn)
    return (engine, *others)


class PlanEngine(PipelineEngine):
    """The engine of a plan; made by :func:`initialize`, never by itself."""

    def reset_activation_shape(self) -> None:
        """Let the next batch have another shape; every rank must call it."""
        super().reset_activation_shape()
        self.module.reset_shapes()
