"""The stages of a variant, built one at a time in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.speed.alone import Stage
from benchmarks.speed.hand_wire import as_pair, from_wire, to_wire, wire
from benchmarks.speed.layers import load_original
from benchmarks.speed.ours import first_units, stage_needs
from benchmarks.speed.sums import sums_of
from partitioner import Plan
from partitioner.emit.weights import weighted
from partitioner.runtime.cuda_graphs import CudaRecorder, Replays
from partitioner.runtime.gradient_sums import GradientSums, gradient_sums
from partitioner.runtime.loss import LossHead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.speed.ours import Needs, Planner
    from benchmarks.speed.setting import Setting
    from benchmarks.speed.variants import Variant
    from partitioner.emit import Layers
    from partitioner.runtime.segment import Segment

__all__ = ["KINDS", "Stages", "in_turn", "stages_of"]

Loss = Callable[[Tensor, Tensor], Tensor]


class Stages(Protocol):
    """The stages of one variant, none of them built yet."""

    @property
    def cut(self) -> Sequence[int | str]:
        """Where they begin, for the record."""

    @property
    def needs(self) -> Sequence[Needs]:
        """What the planner predicts of each, at this cut."""

    def micro_batch(self) -> tuple[Any, Any]:
        """Return what the first stage receives, and the last one's labels."""

    def build(self, number: int) -> Stage:
        """Build one stage on the device, with the original's weights."""


class _Compiles(Protocol):
    def compile(self, **options: Any) -> None: ...


def _as_is(parts: Iterable[_Compiles], loss: Loss) -> Loss:  # noqa: ARG001 - see KINDS
    return loss


def _compiled(parts: Iterable[_Compiles], loss: Loss) -> Loss:
    for part in parts:
        part.compile(dynamic=False)
    compiled: Loss = torch.compile(loss)
    return compiled


KINDS: Mapping[str, Callable[[Iterable[_Compiles], Loss], Loss]] = {
    "eager": _as_is,
    "compiled": _compiled,
}
"""What is done to a stage's layers before it runs, and what its loss becomes, by the
first part of a variant's name."""


def stages_of(variant: Variant, planner: Planner) -> Stages:
    """Return the stages of a variant that says what they hold.

    Raises:
        ValueError: It does not.
    """
    if variant.cut is None:
        raise ValueError(variant.name)
    cut = variant.cut()
    if isinstance(cut, Plan):
        return _Planned(planner.setting, cut, variant.kind)
    return _HandWritten(planner, cut, variant.kind)


@dataclass(frozen=True)
class _HandWritten:
    """Layers as whoever knows the model lists them, under DeepSpeed's own engine.

    Args:
        planner: Of the setting.
        cut: First layer of each stage, and their number.
        kind: One of ``KINDS``.
    """

    planner: Planner
    cut: tuple[int, ...]
    kind: str

    @cached_property
    def needs(self) -> list[Needs]:
        """What a plan for this cut predicts, with gradients added in a plan's way."""
        plan = self.planner.plan_at(self.cut, compiled=self.kind == "compiled")
        return stage_needs(plan)[: len(self.cut) - 1]

    def micro_batch(self) -> tuple[Any, Any]:
        """Return the first micro-batch in DeepSpeed's form."""
        return as_pair(*self.planner.setting.data_on_device[0])

    def build(self, number: int) -> Stage:
        """Build the layers of one stage."""
        setting = self.planner.setting
        first, end = self.cut[number : number + 2]
        specs = setting.workload.layers()
        with torch.device(setting.device):
            layers = nn.ModuleList(spec.build() for spec in specs[first:end])
        load_original(layers, setting.weights)
        _to_dtype(layers, setting)
        loss = KINDS[self.kind](layers, setting.workload.loss)
        shapes = wire(setting)[first] if first else None

        def forward(received: Any) -> Any:
            value = from_wire(received, shapes)
            for layer in layers:
                value = layer(value)
            return to_wire(value)

        return Stage(
            forward=forward,
            loss=loss if end == len(specs) else None,
            sums=sums_of(dict(layers.named_parameters()), setting.dtype, plans=False),
            is_first=first == 0,
        )


@dataclass(frozen=True)
class _Planned:
    """A plan's segments, under a plan's engine.

    Args:
        setting: The model and its data.
        plan: For it.
        kind: One of ``KINDS``.
    """

    setting: Setting
    plan: Plan
    kind: str

    @property
    def cut(self) -> list[str]:
        """The first unit of every stage but the first."""
        return first_units(self.plan)

    @cached_property
    def needs(self) -> list[Needs]:
        """What the plan predicts."""
        return stage_needs(self.plan)

    @cached_property
    def _layers(self) -> Layers:
        is_compiled = self.kind == "compiled"
        return self.plan.compiled_layers if is_compiled else self.plan.layers

    def micro_batch(self) -> tuple[Any, Any]:
        """Return the first micro-batch as the plan's engine makes it."""
        return self.plan.batch_fn(self.setting.data_on_device[0])

    def build(self, number: int) -> Stage:
        """Build the segments of one stage."""
        setting, cut = self.setting, self._layers
        given = weighted(self.plan.graph, cut, str(setting.weights))
        first, end = cut.parts[number : number + 2]
        segments: list[Any] = [spec.build() for spec in given.specs[first:end]]
        module = nn.ModuleList(segments).to(setting.device).train()
        _to_dtype(module, setting)
        workload = setting.workload
        head = LossHead(None, given.head, cut.rebuild, self.plan.batch_fn.labels)
        is_last = end == cut.parts[-1]
        parts = [*segments, head] if is_last else segments
        loss = KINDS[self.kind](parts, workload.loss)
        head.loss_fn = replace(workload, loss=loss).model_loss
        sums = sums_of(dict(module.named_parameters()), setting.dtype, plans=True)
        forward = in_turn(segments, hands_to_loss=is_last)
        if self.plan.options.cuda_graphs:
            forward = _replayed(segments, forward, sums)
        return Stage(
            forward=forward,
            loss=head.to(setting.device).train() if is_last else None,
            sums=sums,
            is_first=number == 0,
        )


def _replayed(
    segments: Sequence[Segment], forward: Callable[[Any], Any], sums: Any
) -> Callable[[Any], Any]:
    """Return a forward that runs by replays from the third call on.

    The first is a forward alone, the second has the backward that goes before replays.
    """
    adds = gradient_sums(sums) or GradientSums()
    replays = [Replays(each, adds, CudaRecorder()) for each in segments]
    for segment, each in zip(segments, replays, strict=True):
        segment.replays = each
    calls = itertools.count()

    def replayed(received: Any) -> Any:
        if next(calls) in {0, 2}:
            for each in replays:
                each.begin_batch()
        return forward(received)

    return replayed


def in_turn(
    segments: Iterable[Segment], *, hands_to_loss: bool
) -> Callable[[Any], Any]:
    """Return the forward of a planned stage.

    Args:
        segments: Of the stage, in order; they will get inputs of one shape.
        hands_to_loss: The loss takes what the last one returns, and lets go of it.
    """
    for segment in segments:
        segment.header.expect(repeats=True, new=True)  # as the engine of a plan does

    def forward(received: Any) -> Any:
        value = received
        for segment in segments:
            value = segment(value)
        return list(value) if hands_to_loss else value

    return forward


def _to_dtype(layers: nn.Module, setting: Setting) -> None:
    """Cast the parameters, not the buffers, as DeepSpeed's engine does."""
    for parameter in layers.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(setting.dtype)
