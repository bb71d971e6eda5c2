"""Train a hand-made pipeline on this rank, or the same model in one process."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec
from torch import Tensor, fx, nn

from partitioner.runtime.batch import BatchAdapter
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead
from partitioner.runtime.pipeline_module import PartitionedPipelineModule
from partitioner.runtime.segment import Segment, SegmentBody
from partitioner.runtime.ties import ParameterTie
from partitioner.runtime.wire import WireSpec
from partitioner.runtime.wire_value import WireValue

__all__ = ["Case", "Outcome", "Part", "run_pipeline", "run_single", "sole"]

MOMENTUM = 0.9


def sole(leaves: Sequence[Any]) -> Any:
    """Return the only leaf of an output."""
    (leaf,) = leaves
    return leaf


@dataclass(kw_only=True)
class Part:
    """One segment: a submodule that takes and returns a number of values."""

    path: str
    inputs: int = 1
    outputs: int = 1
    checkpointed: bool = False


@dataclass(kw_only=True)
class Case:
    """A model, its cut, its data and its loss.

    Args:
        build: Makes the whole model, seeded by the caller.
        parts: Its segments in order.
        bounds: First segment of each stage, and their number.
        batches: Batches, each a list of micro-batches, of one replica.
        forward: Runs the whole model on a micro-batch: its loss.
        loss_fn: The loss of the pipeline.
        loss_body: The part that needs late inputs.
        rebuild: Makes the model's output from the last values.
    """

    build: Callable[[], nn.Module]
    parts: list[Part]
    bounds: tuple[int, ...]
    batches: Callable[[int], list[list[Any]]]
    forward: Callable[[nn.Module, Any], Tensor]
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    loss_body: Callable[[], SegmentBody] | None = None
    rebuild: Callable[[Sequence[Any]], Any] = sole
    adapter: BatchAdapter | None = None
    ties: tuple[ParameterTie, ...] = ()
    clipping: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 0.1


@dataclass(kw_only=True)
class Outcome:
    """Losses and gradient norms by step; the final state and evaluation loss."""

    losses: list[float]
    state: dict[str, Tensor]
    norms: list[float] = field(default_factory=list)
    evaluated: float = 0.0
    held: int = 0
    """Outputs of the last stage that the engine still holds after the last step."""


def run_single(case: Case, replicas: int = 1) -> Outcome:
    """Train the whole model in this process with the same accumulation."""
    model = _build(case)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=case.learning_rate, momentum=MOMENTUM
    )
    outcome = Outcome(losses=[], state={})
    _seed(1)
    data = [case.batches(replica) for replica in range(replicas)]
    for step in zip(*data, strict=True):
        micro_batches = list(itertools.chain(*step))
        for parameter in model.parameters():
            # DeepSpeed steps on zeros where a batch made no gradient, not on None.
            parameter.grad = torch.zeros_like(parameter)
        total = 0.0
        for batch in micro_batches:
            loss = case.forward(model, batch)
            (loss / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
        limit = case.clipping if case.clipping else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        outcome.losses.append(total)
        outcome.norms.append(norm.item())
    first = itertools.chain(*(batches[0] for batches in data))
    with torch.no_grad():
        model.eval()
        losses = [case.forward(model, batch).item() for batch in first]
    outcome.evaluated = sum(losses) / len(losses)
    for name, value in itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers()
    ):
        outcome.state[name] = value.detach().clone()
    return outcome


def run_pipeline(case: Case) -> Outcome:
    """Train this rank's stage with DeepSpeed."""
    module = _pipeline(case)
    optimizer = torch.optim.SGD(
        module.parameters(), lr=case.learning_rate, momentum=MOMENTUM
    )
    replica = module._grid.get_data_parallel_id()
    batches = case.batches(replica)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=_config(case, len(batches[0]))
    )
    if case.adapter is not None:
        engine.set_batch_fn(case.adapter)
    outcome = Outcome(losses=[], state={})
    _seed(1)
    for micro_batches in batches:
        loss = engine.train_batch(iter(micro_batches))
        outcome.losses.append(loss.item())
        norm = engine.get_global_grad_norm()
        outcome.norms.append(0.0 if norm is None else float(norm))
    if engine.is_last_stage():
        outcome.held = sum(map(len, filter(None, engine.pipe_buffers["outputs"])))
    outcome.evaluated = engine.eval_batch(iter(batches[0])).item()
    for layer in module.forward_funcs:
        for name, value in layer.state_dict().items():
            outcome.state[name] = value.detach().clone()
    engine.destroy()
    dist.barrier()
    return outcome


def _pipeline(case: Case) -> PartitionedPipelineModule:
    model = _build(case)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if name in case.config:  # what the engine will do to the parameters
            model.to(dtype)
    wires = _wires(case, model)
    specs = []
    for index, part in enumerate(case.parts):
        kind = CheckpointedSegment if part.checkpointed else Segment
        stage_starts, stage_ends = index in case.bounds, index + 1 in case.bounds
        specs.append(
            LayerSpec(
                kind,
                _body(part, model),
                receive=wires[index] if stage_starts and index else None,
                send=wires[index + 1]
                if stage_ends and index + 1 < len(case.parts)
                else None,
                is_first=index == 0,
            )
        )
    labels = LabelsLayout() if case.adapter is None else case.adapter.labels
    body = None if case.loss_body is None else case.loss_body()
    return PartitionedPipelineModule(
        specs,
        parts=case.bounds,
        ties=case.ties,
        loss_head=LossHead(case.loss_fn, body, case.rebuild, labels),
    )


def _config(case: Case, micro_batches: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": case.clipping,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        **case.config,
    }


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _build(case: Case) -> nn.Module:
    _seed(0)
    return case.build()


def _body(part: Part, model: nn.Module) -> SegmentBody:
    graph = fx.Graph()
    values = [graph.placeholder(f"value_{index}") for index in range(part.inputs)]
    result = graph.call_module(part.path, tuple(values))
    if part.outputs == 1:
        graph.output((result,))
    else:
        graph.output(
            tuple(
                graph.call_function(_item, (result, index))
                for index in range(part.outputs)
            )
        )
    return SegmentBody(
        name=part.path,
        graph=graph,
        modules={part.path: model.get_submodule(part.path)},
        checkpointed=part.checkpointed,
    )


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _wires(case: Case, model: nn.Module) -> list[WireSpec]:
    """Describe the values before each part by running a copy of the model once."""
    model = copy.deepcopy(model)
    batch = case.batches(0)[0][0]
    inputs = batch[0] if case.adapter is None else case.adapter(batch)[0]
    values = inputs if isinstance(inputs, tuple) else (inputs,)
    wires = [WireSpec(values=())]
    for part in case.parts:
        result = model.get_submodule(part.path)(*values)
        values = (result,) if part.outputs == 1 else tuple(result)
        wires.append(
            WireSpec(
                values=tuple(
                    _wire_value(f"{part.path}.{index}", value)
                    for index, value in enumerate(values)
                )
            )
        )
    return wires


def _wire_value(name: str, value: Any) -> WireValue:
    if isinstance(value, int):
        return WireValue(
            name=name, kind="int", dtype=None, shape=(), differentiable=False
        )
    return WireValue(
        name=name,
        kind="tensor",
        dtype=value.dtype,
        shape=tuple(value.shape),
        differentiable=value.requires_grad,
    )
