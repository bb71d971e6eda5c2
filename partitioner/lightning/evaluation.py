"""Validation and test steps: their own plan, over the weights that are trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import RuntimeGuardError
from partitioner.lightning.batches import BatchLayout
from partitioner.lightning.step import RecordedStep
from partitioner.lightning.weights import held_tensors, kept_marks
from partitioner.runtime.agreement import gather, raise_on_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partitioner.lightning.planning import Planner

__all__ = ["EvaluationStep", "stages_of_modules"]


class EvaluationStep:
    """One step of evaluation as a pipeline.

    Recorded at its first batch, and cut so that every module runs on the stage that
    trains it.

    Args:
        engine: The engine; its stages hold the weights.
        module: The ``LightningModule``.
        name: Of the step.
        batch: Its first batch.
        arguments: What the step takes after the batch.
        planner: Plans the step.
        tokens: Counts what its losses are means over; None: samples.
    """

    def __init__(  # noqa: PLR0917 - what a step is made of
        self,
        engine: Any,
        module: Any,
        name: str,
        batch: Any,
        arguments: tuple[Any, ...],
        planner: Planner,
        tokens: Callable[[Any], Any] | None = None,
    ) -> None:
        self._engine, self._tokens = engine, tokens
        self.layout = BatchLayout(batch)
        self.step = RecordedStep(module, name, self.layout, arguments)
        micro_batch = self.layout.split(batch, engine.micro_batches)[0]
        stages = stages_of_tensors(engine)
        pins = stages_of_modules(stages, module)
        with self.step.recording(), kept_marks(module):
            plan = planner(self.step, micro_batch, pins=pins)
            self._batch_fn = plan.batch_fn
            self._pipeline = plan.pipeline_module()
        self._check_weights(stages)

    def _check_weights(self, stages: Mapping[str, set[int]]) -> None:
        """Refuse a plan that reads weights here which another stage trains."""
        mine = {id(tensor) for tensor in held_tensors(self._engine.module).values()}
        stale = [
            name
            for name, tensor in held_tensors(self._pipeline).items()
            if id(tensor) not in mine and name in stages
        ]
        with raise_on_all_ranks(f"planning {self.step.name}"):
            if stale:
                raise RuntimeGuardError(
                    f"{self.step.name} needs {', '.join(stale[:3])} on stage "
                    f"{self._engine.stage_id}, which is trained on another one",
                    hint="let validation run the modules in the order of training, or "
                    "keep them on one stage: PipelineStrategy(…, pin={…})",
                )

    def run(self, batch: Any) -> tuple[dict[str, Tensor], Any, int]:
        """Evaluate one batch.

        Args:
            batch: Built like the first one.

        Returns:
            What the step logged (the mean over samples and replicas), what it returned
            (scalars as means, other tensors with the samples of all micro-batches),
            and how many samples of this replica there were; on every rank.
        """
        engine = self._engine
        parts = self.layout.split(batch, engine.micro_batches)
        with engine.evaluating_with(self._pipeline, self._batch_fn):
            outputs = engine.eval_batch(
                iter(parts),
                compute_loss=False,
                reduce_output=None,
                num_micro_batches=len(parts),
            )
        logged, result = None, None
        if engine.is_last_stage():
            kept = [part for part in parts if part.samples]  # the others come last
            weights = [self.layout.weight(part, self._tokens) for part in kept]
            outputs = outputs[: len(kept)]
            logged = _summed([each["logged"] for each in outputs], weights)
            result = _joined([each["result"] for each in outputs], weights)
        samples = sum(part.samples for part in parts)
        return self._means(logged), self._everywhere(result), samples

    def _means(self, mine: tuple[dict[str, float], int] | None) -> dict[str, Tensor]:
        """Return the means over all replicas, from the sums that last stages know."""
        told = [each for each in gather(mine) if each is not None]
        total = sum(weight for _, weight in told)
        device = self._engine.device
        return {
            name: torch.tensor(
                sum(sums[name] for sums, _ in told) / total if total else math.nan,
                device=device,
            )
            for name in self.step.logged
        }

    def _everywhere(self, mine: Any) -> Any:
        """Return on every rank what the last stage of its replica has."""
        engine = self._engine
        told = [mine]
        if engine.is_pipe_parallel:
            source = engine.grid.stage_to_global(engine.num_stages - 1)
            group = engine.grid.get_pipe_parallel_group()
            dist.broadcast_object_list(told, src=source, group=group)
        return pytree.tree_map_only(
            Tensor, lambda each: each.to(engine.device), told[0]
        )


def stages_of_tensors(engine: Any) -> dict[str, set[int]]:
    """Return the stages of every tensor that an engine holds, by original name.

    Args:
        engine: Every rank must call with its own.
    """
    stages: dict[str, set[int]] = {}
    names = list(held_tensors(engine.module))
    for stage, told in gather((engine.stage_id, names)):
        for name in told:
            stages.setdefault(name, set()).add(stage)
    return stages


def stages_of_modules(stages: Mapping[str, set[int]], module: Any) -> dict[str, int]:
    """Return the stage of every module whose own tensors are all on one stage.

    Args:
        stages: Of the tensors, by name.
        module: The whole model.
    """
    found = {}
    for path, each in module.named_modules():
        own = (
            *each.named_parameters(recurse=False),
            *each.named_buffers(recurse=False),
        )
        places = [stages.get(f"{path}.{name}", set()) for name, _ in own]
        if path and places and all(place == places[0] for place in places):
            (stage, *others) = places[0] or (None, None)
            if stage is not None and not others:
                found[path] = stage
    return found


def _summed(
    logged: list[dict[str, Tensor]], weights: list[int]
) -> tuple[dict[str, float], int]:
    """Return the weighted sums of what was logged, and the sum of the weights."""
    sums = {
        name: _weighted([each[name] for each in logged], weights) for name in logged[0]
    }
    return sums, sum(weights)


def _joined(results: list[Any], weights: list[int]) -> Any:
    """Return what a step returned for a whole batch, on the host."""
    flat = [pytree.tree_flatten(result) for result in results]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([_join(c, weights) for c in columns], flat[0][1])


def _join(values: tuple[Any, ...], weights: list[int]) -> Any:
    if not isinstance(values[0], Tensor):
        return values[0]
    tensors = [value.detach().cpu() for value in values]
    if tensors[0].dim():
        return torch.cat(tensors)
    total = _weighted(tensors, weights)
    return torch.tensor(total / sum(weights) if sum(weights) else math.nan)


def _weighted(values: Sequence[Tensor], weights: list[int]) -> float:
    """Return a weighted sum; what does not count may be 0/0."""
    return sum(float(t) * n for t, n in zip(values, weights, strict=True) if n)
