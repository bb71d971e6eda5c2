"""Validation and test steps: their own plan, over the weights that are trained."""

from __future__ import annotations

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
    from collections.abc import Mapping

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
    """

    def __init__(  # noqa: PLR0917 - what a step is made of
        self,
        engine: Any,
        module: Any,
        name: str,
        batch: Any,
        arguments: tuple[Any, ...],
        planner: Planner,
    ) -> None:
        self._engine = engine
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
        counts = [part.samples for part in parts]
        with engine.evaluating_with(self._pipeline, self._batch_fn):
            outputs = engine.eval_batch(
                iter(parts),
                compute_loss=False,
                reduce_output=None,
                num_micro_batches=len(parts),
            )
        mine = None
        if engine.is_last_stage():
            mine = _joined(outputs, counts)
        return self._told(mine, sum(counts))

    def _told(
        self, mine: tuple[dict[str, float], Any] | None, samples: int
    ) -> tuple[dict[str, Tensor], Any, int]:
        """Return on every rank what the last stages know."""
        engine = self._engine
        told = [
            each
            for each in gather(None if mine is None else (mine[0], samples))
            if each is not None
        ]
        total = sum(count for _, count in told)
        logged = {
            name: torch.tensor(
                sum(values[name] * count for values, count in told) / total,
                device=engine.device,
            )
            for name in self.step.logged
        }
        result = [None if mine is None else mine[1]]
        if engine.is_pipe_parallel:
            source = engine._loss_stage_global_rank()  # noqa: SLF001 - the runtime's own
            group = engine.grid.get_pipe_parallel_group()
            dist.broadcast_object_list(result, src=source, group=group)
        return logged, _on(result[0], engine.device), samples


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


def _joined(outputs: list[Any], counts: list[int]) -> tuple[dict[str, float], Any]:
    """Return what was logged and returned for a whole batch, on the host."""
    kept = [(o, n) for o, n in zip(outputs, counts, strict=True) if n]
    total = sum(counts)
    logged = {
        name: sum(float(output["logged"][name]) * n for output, n in kept) / total
        for name in outputs[0]["logged"]
    }
    flat = [pytree.tree_flatten(output["result"]) for output, _ in kept]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    joined = [_join(column, [n for _, n in kept]) for column in columns]
    return logged, pytree.tree_unflatten(joined, flat[0][1])


def _join(values: tuple[Any, ...], counts: list[int]) -> Any:
    if not isinstance(values[0], Tensor):
        return values[0]
    tensors = [value.detach().cpu() for value in values]
    if tensors[0].dim():
        return torch.cat(tensors)
    weighted = [t.double() * n for t, n in zip(tensors, counts, strict=True)]
    return (torch.stack(weighted).sum() / sum(counts)).to(
        tensors[0].dtype if tensors[0].is_floating_point() else torch.float32
    )


def _on(tree: Any, device: torch.device) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)
