"""The parameters and buffers that a stage holds, each once, with all its names."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from partitioner.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from partitioner.runtime.segment import SegmentBody

__all__ = ["Wanted", "WeightSource", "wanted_by"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """A parameter or buffer of the model that has to get its values.

    Args:
        names: Its original names, the first one first.
        tensor: The model's own, usually on ``meta``.
        persistent: Whether files hold it.
    """

    names: tuple[str, ...]
    tensor: Tensor
    persistent: bool = True

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]

    @property
    def owner(self) -> str:
        """Path of the module that its first name belongs to."""
        return self.name.rpartition(".")[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.tensor.numel() * self.tensor.itemsize

    @property
    def what(self) -> str:
        """What to call it in a message."""
        kind = "parameter" if isinstance(self.tensor, nn.Parameter) else "buffer"
        others = ", ".join(map(repr, self.names[1:]))
        return f"{kind} {self.name!r}{f' (also {others})' if others else ''}"


class WeightSource(Protocol):
    """Where values come from."""

    def check(self, wanted: Sequence[Wanted]) -> None:
        """Find out whether there are values for all of these.

        Raises:
            WeightsError: Not for all of them.
        """

    def values(
        self, wanted: Sequence[Wanted], device: torch.device
    ) -> dict[int, Tensor]:
        """Return the values of each, on the device, by the id of the model's tensor.

        Raises:
            WeightsError: One cannot be read or made.
        """

    def mapped(self, names: Sequence[str], tensor: Tensor) -> Tensor | None:
        """Return what files hold under one of these names, mapped, not read; or None.

        Raises:
            WeightsError: It has another shape or kind than ``tensor``.
        """


def wanted_by(
    model: nn.Module, aliases: Mapping[str, str], bodies: Sequence[SegmentBody]
) -> list[Wanted]:
    """Return what these segments hold of a model.

    Args:
        model: The user's model.
        aliases: Every name → the first name of the same tensor.
        bodies: The segments.

    Raises:
        WeightsError: Two tensors share memory, which copies would not.
    """
    names: dict[str, list[str]] = {}
    for name, first in aliases.items():
        names.setdefault(first, []).append(name)
    found: dict[int, Wanted] = {}
    for name, tensor in chain.from_iterable(map(_held, bodies)):
        first = aliases.get(name, name)
        if id(tensor) in found or not _belongs(model, first, tensor):
            continue
        others = [other for other in names.get(first, ()) if other != first]
        found[id(tensor)] = Wanted(
            names=(first, *others),
            tensor=tensor,
            persistent=any(_persistent(model, each) for each in (first, *others)),
        )
    result = sorted(found.values(), key=lambda each: each.name)
    _check_apart(result)
    return result


def _held(body: SegmentBody) -> Iterator[tuple[str, Tensor]]:
    """Yield what a segment holds by its original names."""
    for path, module in body.modules.items():
        yield from module.named_parameters(path, remove_duplicate=False)
        yield from module.named_buffers(path, remove_duplicate=False)
    yield from body.parameters.items()
    for name, (buffer, _) in body.buffers.items():
        yield name, buffer


def _belongs(model: nn.Module, name: str, tensor: Tensor) -> bool:
    """Whether a tensor is one of the model's: not a constant of the forward."""
    return _entry(model, name) is tensor


def _entry(model: nn.Module, name: str) -> Any:
    path, _, last = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    return owner._parameters.get(last, owner._buffers.get(last))  # noqa: SLF001 - nn.Module's own tables


def _persistent(model: nn.Module, name: str) -> bool:
    path, _, last = name.rpartition(".")
    return last not in model.get_submodule(path)._non_persistent_buffers_set  # noqa: SLF001 - nn.Module's own


def _check_apart(wanted: Sequence[Wanted]) -> None:
    """Refuse tensors that are views of one memory."""
    places: dict[int, Wanted] = {}
    for each in wanted:
        if not each.tensor.numel():
            continue
        place = each.tensor.untyped_storage()._cdata  # noqa: SLF001 - what tells storages on meta apart
        other = places.setdefault(place, each)
        if other is not each:
            raise WeightsError(
                f"{other.what} and {each.what} are views of one memory, and copies "
                "of their values would not be",
                hint="make them one parameter, or load the model before partition()",
            )
