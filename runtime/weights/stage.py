"""One stage's weights: made when its first segment is built, on its own rank alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from partitioner.errors import WeightsError
from partitioner.runtime.weights.copies import copy_with, like
from partitioner.runtime.weights.wanted import Wanted, WeightSource, wanted_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partitioner.runtime.segment import SegmentBody

__all__ = ["StageWeights"]


class StageWeights:
    """Gives the segments of one stage copies of the user's modules with values.

    The user's model stays as it is. One copy serves all segments of the stage, so
    that what they share stays shared.

    Args:
        model: The user's model, usually on ``meta``.
        aliases: Every parameter's and buffer's name → the first name of the same.
        source: Where the values come from.
        bodies: All segments of the stage.
    """

    def __init__(
        self,
        model: nn.Module,
        aliases: Mapping[str, str],
        source: WeightSource,
        bodies: Sequence[SegmentBody],
    ) -> None:
        self._model = model
        self._aliases = aliases
        self._source = source
        self._bodies = tuple(bodies)

    def give(self, body: SegmentBody) -> SegmentBody:
        """Return a segment's body with copies of its modules that have values.

        Raises:
            WeightsError: A parameter or buffer can be neither read nor made.
        """
        memo = self._copies
        given = replace(
            body,
            modules={path: memo[id(module)] for path, module in body.modules.items()},
            parameters={
                name: memo[id(parameter)] for name, parameter in body.parameters.items()
            },
            buffers={
                name: (memo.get(id(buffer), buffer), persistent)
                for name, (buffer, persistent) in body.buffers.items()
            },
            configs=[memo.get(id(config), config) for config in body.configs],
        )
        _check_values(given)
        return given

    @cached_property
    def wanted(self) -> list[Wanted]:
        """What the stage holds.

        Raises:
            WeightsError: Two tensors share memory, which copies would not.
        """
        return wanted_by(self._model, self._aliases, self._bodies)

    @cached_property
    def _copies(self) -> dict[int, Any]:
        """The id of each of the user's objects → its copy."""
        # Straight to the device: all ranks of a machine share its memory.
        device = torch.device(get_accelerator().current_device_name())
        values = self._source.values(self.wanted, device)

        def replacement(tensor: Tensor) -> Tensor:
            mine = values.pop(id(tensor), None)
            # Another stage's tensor is no tensor of this rank's, and stays as it is.
            return tensor if mine is None else like(tensor, mine)

        _, memo = copy_with(self._model, replacement)
        return memo


def _check_values(body: SegmentBody) -> None:
    tables: list[tuple[str, Any]] = [
        (f"{path}.{name}", tensor)
        for path, module in body.modules.items()
        for named in (module.named_parameters(), module.named_buffers())
        for name, tensor in named
    ]
    tables += [(name, tensor) for name, tensor in body.parameters.items()]
    tables += [(name, tensor) for name, (tensor, _) in body.buffers.items()]
    for name, tensor in tables:
        if tensor.is_meta:
            raise WeightsError(
                f"segment {body.name} uses {name!r}, which is on the meta device and "
                "is no parameter or buffer that could be read or made",
                hint="register it as a buffer, or give it its values before "
                "partition()",
            )
