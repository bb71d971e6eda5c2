"""DeepSpeed's optimizers by parameter names: where state lies, how to replace it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from partitioner.errors import OptionError
from partitioner.runtime.checkpoint.manifest import GroupRecord, OptimizerKind, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["LiveOptimizer", "live_optimizer"]


@dataclass(frozen=True, kw_only=True)
class LiveOptimizer:
    """The optimizer of this rank's stage.

    Args:
        kind: How it keeps its state.
        base: The user's optimizer, which DeepSpeed may have wrapped.
        groups: Its parameter groups.
        masters: For each group the fp32 copies: one for each parameter ("copies"),
            or this replica's part of the flat tensor. Empty without copies.
        replica: Which part of a partitioned tensor this rank has.
        relink: To be called when state has been replaced.
    """

    kind: OptimizerKind
    base: torch.optim.Optimizer
    groups: tuple[GroupRecord, ...]
    masters: tuple[tuple[Tensor, ...], ...]
    replica: int
    relink: Callable[[], None]


def live_optimizer(engine: Any, names: Mapping[int, str]) -> LiveOptimizer | None:
    """Describe the optimizer of an engine.

    Args:
        engine: DeepSpeed's engine.
        names: The parameters' original names, by ``id``.

    Returns:
        None: the engine has no optimizer.

    Raises:
        OptionError: The optimizer is of a kind whose state has no place by name.
    """
    wrapper = engine.optimizer
    if wrapper is None:
        return None
    for kind, describe in _WRAPPERS.items():
        if isinstance(wrapper, kind):
            return describe(wrapper, _Namer(names))
    if isinstance(wrapper, torch.optim.Optimizer):
        return _plain(wrapper, _Namer(names))
    raise OptionError(
        f"checkpoints know no optimizer of the kind {type(wrapper).__name__}",
        hint="use ZeRO stage 0 or 1 and an optimizer of torch's form",
    )


class _Namer:
    """Makes records of parameter groups."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names

    def group(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        partition: int = 0,
        offsets: Sequence[int] | None = None,
    ) -> GroupRecord:
        """Describe a group whose parameters lie one after the other, or at offsets."""
        slots, after = [], 0
        for index, parameter in enumerate(parameters):
            start = after if offsets is None else offsets[index]
            slots.append(
                Slot(
                    name=self._name(parameter),
                    shape=tuple(parameter.shape),
                    offset=start,
                )
            )
            after = start + math.prod(parameter.shape)
        return GroupRecord(slots=tuple(slots), partition=partition)

    def _name(self, parameter: nn.Parameter) -> str:
        name = self._names.get(id(parameter))
        if name is None:
            raise OptionError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} "
                "that is not the model's",
                hint="give it the parameters of engine.module alone",
            )
        return name


def _plain(wrapper: torch.optim.Optimizer, namer: _Namer) -> LiveOptimizer:
    groups = [namer.group(group["params"]) for group in wrapper.param_groups]
    return LiveOptimizer(
        kind="parameters",
        base=wrapper,
        groups=tuple(groups),
        masters=(),
        replica=0,
        relink=_nothing,
    )


def _unfused(wrapper: Any, namer: _Namer) -> LiveOptimizer:
    return LiveOptimizer(
        kind="copies",
        base=wrapper.optimizer,
        groups=tuple(namer.group(group) for group in wrapper.fp16_groups),
        masters=tuple(map(tuple, wrapper.fp32_groups)),
        replica=0,
        relink=_nothing,
    )


def _fused(wrapper: Any, namer: _Namer) -> LiveOptimizer:
    pairs = zip(wrapper.fp16_groups, wrapper.fp32_groups_flat, strict=True)
    groups = [namer.group(group, partition=flat.numel()) for group, flat in pairs]
    return LiveOptimizer(
        kind="flat",
        base=wrapper.optimizer,
        groups=tuple(groups),
        masters=tuple((flat,) for flat in wrapper.fp32_groups_flat),
        replica=0,
        relink=_nothing,
    )


def _bf16(wrapper: Any, namer: _Namer) -> LiveOptimizer:
    pairs = zip(wrapper.bf16_groups, wrapper.fp32_groups_flat_partition, strict=True)
    groups = [namer.group(group, partition=part.numel()) for group, part in pairs]
    return LiveOptimizer(
        kind="partitioned",
        base=wrapper.optimizer,
        groups=tuple(groups),
        masters=tuple((part,) for part in wrapper.fp32_groups_flat_partition),
        replica=wrapper.dp_rank,
        relink=wrapper._link_all_hp_params,  # noqa: SLF001 - what its own loading calls
    )


def _zero(wrapper: Any, namer: _Namer) -> LiveOptimizer:
    if wrapper.elastic_checkpoint:
        raise OptionError(
            "zero_optimization.elastic_checkpoint writes state without its names",
            hint="leave it out: checkpoints of a plan load at any number of replicas",
        )
    parts = wrapper.single_partition_of_fp32_groups
    groups = [
        namer.group(group, partition=part.numel(), offsets=offsets)
        for group, offsets, part in zip(
            wrapper.round_robin_bit16_groups,
            getattr(wrapper, "round_robin_bit16_offsets", [None] * len(parts)),
            parts,
            strict=True,
        )
    ]
    return LiveOptimizer(
        kind="partitioned",
        base=wrapper.optimizer,
        groups=tuple(groups),
        masters=tuple((part,) for part in parts),
        replica=torch.distributed.get_rank(group=wrapper.dp_process_group),
        relink=wrapper._link_all_hp_params,  # noqa: SLF001 - what its own loading calls
    )


def _nothing() -> None:
    """Nothing in the wrapper refers to the state."""


_WRAPPERS: dict[type, Callable[[Any, _Namer], LiveOptimizer]] = {
    BF16_Optimizer: _bf16,
    DeepSpeedZeroOptimizer: _zero,
    FP16_Optimizer: _fused,
    FP16_UnfusedOptimizer: _unfused,
}
