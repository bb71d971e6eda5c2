"""What operators return on fakes, remembered: layers repeat the same few operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FakeCache"]

Key = list[Any]

_PLAIN = frozenset(
    (
        type(None), bool, int, float, complex, str,
        torch.dtype, torch.device, torch.layout, torch.memory_format,
    )
)  # fmt: skip
"""Classes of arguments that are a key as they are, along with their class."""

_BUILT_IN = frozenset(("aten", "prims"))
"""Namespaces of operators whose fakes follow what their arguments look like."""

_NUMBERS_COUNT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Tags of operators whose result follows the numbers in their arguments."""


@dataclass(frozen=True, slots=True)
class _Made:
    """One tensor that an operator returned."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    view: bool
    """Whether its memory is that of the only tensor among the arguments."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What an operator returned."""

    func: Any
    """Kept alive, as its id is part of the key."""
    kind: type | None
    """Class of the container of the results; None for a single tensor."""
    parts: tuple[_Made | int | None, ...] | None
    """None if the result cannot be made again."""


class FakeCache:
    """Runs operators on fakes; what ran on tensors that look alike is not run again.

    torch has such a cache, for all that its callers may do (symbolic sizes, tracing),
    and asks each tensor some twenty questions for it: half the time of a recording.
    Operators that write, that draw what they return from numbers or that are not
    torch's own are left to torch, and so is what is no plain dense fake.

    Args:
        fakes: The mode of the fakes.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        self.fakes = fakes
        self._known: dict[tuple[Any, ...], _Known] = {}

    def run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return what ``func`` returns on these arguments."""
        tensors: list[torch.Tensor] = []
        key: Key = [
            id(func),
            torch.get_default_dtype(),
            torch.is_inference_mode_enabled(),
        ]
        if not (
            _is_function_of_looks(func)
            and self._describe(args, key, tensors)
            and (not kwargs or self._describe(tuple(kwargs.items()), key, tensors))
        ):
            return self.fakes.__torch_dispatch__(func, types, args, kwargs)
        found = tuple(key)
        known = self._known.get(found)
        if known is not None and known.parts is not None:
            return self._again(known.kind, known.parts, tensors)
        out = self.fakes.__torch_dispatch__(func, types, args, kwargs)
        if known is None:
            self._known[found] = _Known(func, *self._as_known(out, tensors))
        return out

    def _describe(self, values: Any, key: Key, tensors: list[torch.Tensor]) -> bool:
        """Add to a key; False if there is something that no key can tell."""
        key.append(len(values))
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if not self._is_ours(value):
                    return False
                tensors.append(value)
                key += _looks(value)
            elif kind in _PLAIN:
                key += (kind, value)  # 1 == 1.0 == True
            elif kind is list or kind is tuple:
                if not self._describe(value, key, tensors):
                    return False
            else:
                return False
        return True

    def _is_ours(self, fake: Any) -> bool:
        return (
            fake.fake_mode is self.fakes
            and fake.constant is None
            and fake.layout is torch.strided
        )

    def _as_known(
        self, out: Any, tensors: Sequence[torch.Tensor]
    ) -> tuple[type | None, tuple[_Made | int | None, ...] | None]:
        """Return how to make a result again; (…, None) if it cannot be."""
        kind = next((cls for cls in (tuple, list) if isinstance(out, cls)), None)
        given = {id(tensor) for tensor in tensors}
        memory = {_memory(tensor) for tensor in tensors}
        new: set[int] = set()
        parts: list[_Made | int | None] = []
        results = out if kind else (out,)
        for value in results:
            if type(value) is int or value is None:
                parts.append(value)
                continue
            if type(value) is not FakeTensor or not self._is_ours(value):
                return kind, None
            place = _memory(value)
            view = place in memory
            if id(value) in given or place in new or (view and len(tensors) > 1):
                return kind, None
            if not view:
                new.add(place)
            parts.append(_made(value, view=view))
        made = tuple(parts)
        again = self._again(kind, made, tensors)
        alike = all(map(_alike, results, again if kind else (again,)))
        return kind, made if alike else None

    def _again(
        self,
        kind: type | None,
        parts: tuple[_Made | int | None, ...],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        results = [
            self._make(part, tensors) if isinstance(part, _Made) else part
            for part in parts
        ]
        return kind(results) if kind else results[0]

    def _make(self, made: _Made, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - what torch's cache uses
            meta = torch.empty_strided(
                made.shape, made.stride, dtype=made.dtype, device="meta"
            )
            if made.view:
                memory = tensors[0].untyped_storage()
                meta.set_(memory, made.offset, made.shape, made.stride)
        return FakeTensor(self.fakes, meta, made.device)


@cache
def _is_function_of_looks(func: Any) -> bool:
    """Whether an operator's result follows what its arguments look like alone."""
    return (
        func.namespace in _BUILT_IN
        and not func._schema.is_mutable  # noqa: SLF001 - torch has no public name
        and not any(tag in func.tags for tag in _NUMBERS_COUNT)
    )


def _looks(fake: Any) -> tuple[Any, ...]:
    """Return all that an operator's result may follow: everything but the numbers."""
    return (
        FakeTensor,
        fake.size(),
        fake.stride(),
        fake.storage_offset(),
        fake.dtype,
        fake.fake_device,
        fake.requires_grad,
        # Conjugate, negative, in inference mode, quantized …
        torch._C._dispatch_keys(fake).raw_repr(),  # noqa: SLF001 - torch has no public name
        fake.untyped_storage().nbytes(),
    )


def _made(fake: Any, *, view: bool) -> _Made:
    return _Made(
        shape=tuple(fake.size()),
        stride=fake.stride(),
        offset=fake.storage_offset(),
        dtype=fake.dtype,
        device=fake.fake_device,
        view=view,
    )


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - data_ptr is 0 for every fake


def _alike(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor):
        return type(first) is type(second) and bool(first == second)
    return _looks(first) == _looks(second)
