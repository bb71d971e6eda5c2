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
from torch import Tensor, nn

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
        """Run the stage, on images in channels-last order.

        DeepSpeed sends contiguous tensors alone, and runs backward once for each tensor
        that it sends: several are joined.
        """
        shapes = self._wire[self._local_start]
        if self._local_start and len(shapes) > 1:
            sizes = [shape.numel() for shape in shapes]
            pieces = zip(received.split(sizes), shapes, strict=True)
            received = tuple(piece.view(shape) for piece, shape in pieces)
        found = super().forward(_as_images(received, torch.channels_last))  # type: ignore[misc]
        if isinstance(found, tuple):
            return torch.cat([each.reshape(-1) for each in found])
        return _as_images(found, torch.contiguous_format)

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
            wire=_wire(setting),
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
    batches = [_as_pair(inputs, labels) for inputs, labels in data]
    return EngineRunner(engine, itertools.cycle(batches), list(map(int, module.parts)))


def _wire(setting: Setting) -> list[list[torch.Size]]:
    """Return the shapes of what every layer receives."""
    found = []
    inputs = {name: value.to("meta") for name, value in setting.data[0][0].items()}
    value, _ = _as_pair(inputs, None)
    with torch.device("meta"):
        for spec in setting.workload.layers():
            tensors = value if isinstance(value, tuple) else (value,)
            found.append([tensor.shape for tensor in tensors])
            value = spec.build().to(setting.dtype)(value)
    return found


def _layers(module: Any) -> Sequence[nn.Module]:
    if isinstance(module, DualPipeVModule):
        return [layer for layers in module.phase_funcs for layer in layers]
    found: list[nn.Module] = module.forward_funcs
    return found


def _as_images(value: Any, memory_format: torch.memory_format) -> Any:
    """Return a batch of images in another order in memory; all else as it is."""
    if isinstance(value, tuple):
        return tuple(_as_images(each, memory_format) for each in value)
    if isinstance(value, Tensor) and value.dim() == 4:  # noqa: PLR2004 - NCHW
        return value.contiguous(memory_format=memory_format)
    return value


def _as_pair(inputs: dict[str, Any], labels: Any) -> tuple[Any, Any]:
    """Return DeepSpeed's form: a tensor, or a tuple of several."""
    tensors = tuple(inputs.values())
    return (tensors[0] if len(tensors) == 1 else tensors), labels
