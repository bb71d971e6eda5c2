"""Values out of files: only those that are wanted, and never more than one copy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from partitioner.errors import WeightsError
from partitioner.runtime.weights.names import Converted, match_names, unused
from partitioner.runtime.weights.readers import open_file
from partitioner.runtime.weights.rules import made_by_rules
from partitioner.runtime.weights.tensor_files import TensorFiles
from partitioner.runtime.weights.wanted import Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from partitioner.runtime.weights.locate import Located

__all__ = ["FileWeights"]

_LOG = logging.getLogger(__name__)
_SHOWN = 5
# What is mapped at a time: at least this, and else this part of a stage's own bytes.
_LEAST, _PARTS = 2**22, 30
_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


class FileWeights:
    """Reads what is stored in files; makes the other buffers by their modules' rules.

    Args:
        located: The files.
        model: The whole model, usually on ``meta``.

    Raises:
        WeightsError: A file cannot be read.
    """

    def __init__(self, located: Located, model: nn.Module) -> None:
        self._model = model
        self._files = TensorFiles(located)
        self._origins = match_names(model, self._files.keys())
        left = unused(model, self._files.keys(), self._origins)
        if left and (not dist.is_initialized() or dist.get_rank() == 0):
            _LOG.warning(
                "%s holds %d tensors that %s has no place for: %s",
                located.given,
                len(left),
                type(model).__name__,
                _some(left),
            )

    def check(self, wanted: Sequence[Wanted]) -> None:
        """Find out whether the files have all that is stored in files.

        Raises:
            WeightsError: Names what they lack.
        """
        stored = [each for each in wanted if each.persistent]
        lacking = [each.what for each in stored if self._known_as(each) is None]
        missing = list(dict.fromkeys(lacking))  # a tied one is on several stages
        if missing:
            raise WeightsError(
                f"{self._files.given} does not have {_some(missing)}; it has "
                f"{_some(sorted(self._files.keys()))}",
                hint="the files must be of this model, under its own names or those "
                "of its base model; load another model's before partition()",
            )

    def values(
        self, wanted: Sequence[Wanted], device: torch.device
    ) -> dict[int, Tensor]:
        """Return the values of each, on the device, by the id of the model's tensor.

        Raises:
            WeightsError: A file cannot be read, a tensor has another shape or kind,
                or there is no rule for a buffer.
        """
        self.check(wanted)
        stored = [each for each in wanted if each.persistent]
        own = sum(each.nbytes for each in wanted)
        self._files.limit = max(_LEAST, own // _PARTS)
        found: dict[int, Tensor] = {}
        try:
            for each in sorted(stored, key=self._order):
                found[id(each.tensor)] = self._read(each, device)
        finally:
            self._files.release()
        others = [each for each in wanted if not each.persistent]
        return found | made_by_rules(self._model, others, device)

    def mapped(self, names: Sequence[str], tensor: Tensor) -> Tensor | None:
        """Return what the files hold under one of these names, mapped, not read.

        Raises:
            WeightsError: It has another shape or kind than ``tensor``.
        """
        wanted = Wanted(names=tuple(names), tensor=tensor)
        origin = self._origins.get(self._known_as(wanted) or "")
        if not isinstance(origin, str):
            return None
        # A reader of its own: its map stays, and takes no memory until it is used.
        found = open_file(self._files.path(origin)).tensor(origin)
        self._check_same(wanted, found, [origin])
        return found

    def _order(self, wanted: Wanted) -> tuple[str, str]:
        """Sort by file, so that each is opened once."""
        origin = self._origins[self._known_as(wanted) or ""]
        key = origin.sources[0][1] if isinstance(origin, Converted) else origin
        return str(self._files.path(key)), key

    def _read(self, wanted: Wanted, device: torch.device) -> Tensor:
        name = self._known_as(wanted) or ""
        origin = self._origins[name]
        out = torch.empty_like(
            wanted.tensor.detach(), device=device, requires_grad=False
        )
        if isinstance(origin, Converted):
            values = origin.make(name, self._files.tensor, self._model)
            keys = [key for _, key in origin.sources]
            self._check_same(wanted, values, keys)
            out.copy_(values)
            del values
            self._files.release()
        else:
            self._check_same(wanted, self._files.tensor(origin), [origin])
            self._files.copy(origin, out)
        return out

    def _known_as(self, wanted: Wanted) -> str | None:
        """Return the first of its names that the files have values for."""
        return next((name for name in wanted.names if name in self._origins), None)

    def _check_same(self, wanted: Wanted, values: Tensor, keys: Sequence[str]) -> None:
        where = f"{_some(keys)} of {self._files.path(keys[0])}"
        if values.shape != wanted.tensor.shape:
            raise WeightsError(
                f"{wanted.what} has shape {tuple(wanted.tensor.shape)}, and {where} "
                f"has {tuple(values.shape)}",
                hint="build the model with the configuration that the file was "
                "saved with",
            )
        kinds = {values.dtype, wanted.tensor.dtype}
        if len(kinds) > 1 and not kinds <= _FLOATS:
            raise WeightsError(
                f"{wanted.what} is {wanted.tensor.dtype}, and {where} is "
                f"{values.dtype}: the values mean something else (quantised, perhaps)",
                hint="only float64, float32, float16 and bfloat16 are cast to one "
                "another; save the model in one of them",
            )


def _some(words: Sequence[str]) -> str:
    """Return the first few of these, and how many there are besides."""
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
