"""Pipelines written by hand: DeepSpeed's own engine over the model's own layers."""

from __future__ import annotations

import io
import itertools
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Literal

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import DualPipeVModule, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from benchmarks.speed.hand_wire import as_pair, from_wire, to_wire, wire
from benchmarks.speed.layers import load_original
from benchmarks.speed.runner import EngineRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.speed.setting import Setting

__all__ = ["Cut", "hand_written", "one_device", "parts_of"]

Cut = tuple[int, ...] | Literal["parameters", "uniform"]
"""First layer of each stage and the number of layers, or a method of DeepSpeed's."""


class _Exact:
    """Cuts where it was told to; mixed into DeepSpeed's modules."""

    _local_start: int

    def __init__(
        self, *args: Any, cut: Cut, wire: Sequence[Sequence[torch.Size]], **options: Any
    ) -> None:
        self._cut = cut
        self._wire = wire
        super().__init__(*args, **options)

    def forward(self, received: Any) -> Any:
        """Run the stage on what it receives in one tensor, and send one."""
        shapes = self._wire[self._local_start] if self._local_start else None
        made = super().forward(from_wire(received, shapes))  # type: ignore[misc]
        return to_wire(made)

    def _partition_layers(self, method: str) -> None:  # noqa: ARG002 - see ``cut``
        super()._partition_layers(  # type: ignore[misc]
            self._cut if isinstance(self._cut, str) else "uniform"
        )
        if isinstance(self._cut, tuple):
            self._take(list(self._cut))

    def _take(self, parts: list[int]) -> None:
        raise NotImplementedError


class _Pipeline(_Exact, PipelineModule):  # type: ignore[misc]
    def _take(self, parts: list[int]) -> None:
        self.parts = parts
        self._set_bounds(parts[self.stage_id], parts[self.stage_id + 1])


class _DualPipeV(_Exact, DualPipeVModule):  # type: ignore[misc]
    def _take(self, parts: list[int]) -> None:
        self.parts = parts
        twin = len(parts) - 2 - self.stage_id
        self._set_bounds(parts[self.stage_id], parts[self.stage_id + 1])
        self.phase_bounds = [
            (self._local_start, self._local_stop),
            (parts[twin], parts[twin + 1]),
        ]


def hand_written(
    setting: Setting,
    cut: Cut,
    *,
    compiled: bool = False,
    on_device: bool = True,
    dual: bool = False,
) -> EngineRunner:
    """Build a hand-written pipeline over all ranks.

    Args:
        setting: The model and its data.
        cut: Where the stages begin.
        compiled: Every layer and the loss run under ``torch.compile``.
        on_device: The batches are on the device; else they are in pageable memory,
            as a data loader's are by default.
        dual: Run DualPipeV; ``cut`` then has two stages for each rank.
    """
    kind = _DualPipeV if dual else _Pipeline
    ranks = {"num_stages": dist.get_world_size()}
    return _build(setting, kind, cut, ranks, compiled=compiled, on_device=on_device)


def one_device(
    setting: Setting, *, compiled: bool = False, recomputed: bool = False
) -> EngineRunner:
    """Build the unpartitioned pipeline on every rank at once.

    To DeepSpeed the ranks are tensor-parallel ones, of which none has data of its own
    and no gradient is summed: each trains the whole model by itself.

    Args:
        setting: The model and its data.
        compiled: As for :func:`hand_written`.
        recomputed: Every layer is an activation checkpoint.
    """
    alone = PipeModelDataParallelTopology(
        num_pp=1, num_mp=dist.get_world_size(), num_dp=1
    )
    ranks = {"topology": alone, "activation_checkpoint_interval": int(recomputed)}
    return _build(
        setting, _Pipeline, "uniform", ranks, compiled=compiled, on_device=True
    )


def parts_of(
    setting: Setting, method: Literal["parameters", "uniform"], stages: int
) -> tuple[int, ...]:
    """Return where a method of DeepSpeed's cuts."""
    specs = setting.workload.layers()
    if method == "uniform":
        bounds = deepspeed.runtime.utils.partition_uniform(len(specs), stages)
        return tuple(map(int, bounds))
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in spec.build().parameters() if p.requires_grad)
            for spec in specs
        ]
    bounds = deepspeed.runtime.utils.partition_balanced(counts, stages)
    return tuple(map(int, bounds))


def _build(
    setting: Setting,
    kind: Any,
    cut: Cut,
    ranks: dict[str, Any],
    *,
    compiled: bool,
    on_device: bool,
) -> EngineRunner:
    loss: Any = setting.workload.loss
    with torch.device(setting.device), redirect_stdout(io.StringIO()):
        module = kind(
            layers=setting.workload.layers(),
            cut=cut,
            wire=wire(setting),
            loss_fn=torch.compile(loss) if compiled else loss,
            **ranks,
        )
    for parameter in module.parameters():
        parameter.model_parallel = True  # else only the first rank's count in the norm
    layers = _layers(module)
    load_original(layers, setting.weights)
    if compiled:
        for layer in layers:
            layer.compile(dynamic=False)
    engine, *_ = deepspeed.initialize(model=module, config=setting.config())
    data = setting.data_on_device if on_device else setting.data
    batches = [as_pair(inputs, labels) for inputs, labels in data]
    return EngineRunner(engine, itertools.cycle(batches), list(map(int, module.parts)))


def _layers(module: Any) -> Sequence[nn.Module]:
    if isinstance(module, DualPipeVModule):
        return [layer for layers in module.phase_funcs for layer in layers]
    found: list[nn.Module] = module.forward_funcs
    return found
