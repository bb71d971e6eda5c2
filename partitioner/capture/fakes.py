"""Swap a model's weights for fake tensors while it is recorded, and put all back."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from partitioner.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FakeWeights",
    "caches_off",
    "fake_weights",
    "make_fake",
    "model_device",
    "refresh_flat_weights",
]


@dataclass(slots=True)
class FakeWeights:
    """The fakes that stand for a model's parameters and buffers."""

    mode: FakeTensorMode
    device: torch.device
    """The device the fakes seem to be on."""
    names: dict[int, str] = field(default_factory=dict)
    """id of a fake → first name of the tensor it stands for."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Every name → the first name of the same tensor."""


def make_fake(
    mode: FakeTensorMode,
    tensor: torch.Tensor,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    shape: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """Return a fake that looks like ``tensor`` on ``device``; allocates nothing.

    A model on ``meta`` gets fakes that seem to be on the CPU, so that a constant
    created with ``device=x.device`` has values that Python can read.
    """
    wanted = dtype if dtype and tensor.is_floating_point() else tensor.dtype
    if shape is None:
        meta = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=wanted, device="meta"
        )
    else:
        meta = torch.empty(shape, dtype=wanted, device="meta")
    fake: torch.Tensor = FakeTensor(mode, meta, device)
    if isinstance(tensor, nn.Parameter):
        # So that isinstance(fake, nn.Parameter) holds.
        fake._is_param = True  # noqa: SLF001 - what torch itself sets
    return fake.requires_grad_(tensor.requires_grad)


def model_device(model: nn.Module) -> torch.device:
    """Return the device of the first weight; CPU for ``meta`` and empty models."""
    for tensor in (*model.parameters(), *model.buffers()):
        return torch.device("cpu") if tensor.device.type == "meta" else tensor.device
    return torch.device("cpu")


@contextmanager
def fake_weights(model: nn.Module, dtype: torch.dtype | None) -> Iterator[FakeWeights]:
    """Replace every parameter and buffer by a fake for the duration.

    Args:
        model: The user's module.
        dtype: Floating dtype of the parameters while recording; None keeps each.
            Buffers keep their dtype, as DeepSpeed's mixed precision does.

    Raises:
        CaptureError: A lazy module has not been initialised.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = FakeWeights(mode=mode, device=model_device(model))
    made: dict[int, torch.Tensor] = {}
    first: dict[int, str] = {}
    for prefix, module in model.named_modules():
        for table, cast in _tables(module, dtype):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                full = f"{prefix}.{name}" if prefix else name
                _check_recordable(full, tensor)
                # Compiled code reads its own table: a fake must not get in there.
                compiled = isinstance(module, torch.jit.ScriptModule)
                if id(tensor) not in made:
                    fake = tensor
                    if not compiled:
                        fake = make_fake(mode, tensor, device=fakes.device, dtype=cast)
                    made[id(tensor)] = fake
                    first[id(tensor)] = full
                    fakes.names[id(fake)] = full
                if not compiled:
                    table[name] = made[id(tensor)]
                fakes.aliases[full] = first[id(tensor)]
        refresh_flat_weights(module)
    _alias_shared_modules(model, fakes.aliases)
    with _compiled_in(model, dtype):
        yield fakes


@contextmanager
def _compiled_in(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Cast the parameters of parts compiled by TorchScript, which stay real tensors."""
    compiled = (m for m in model.modules() if isinstance(m, torch.jit.ScriptModule))
    parameters = {id(p): p for module in compiled for p in module.parameters()}
    cast = [p for p in parameters.values() if dtype and p.is_floating_point()]
    before = [parameter.data for parameter in cast]
    try:
        for parameter in cast:
            parameter.data = parameter.data.to(dtype)
        yield
    finally:
        for parameter, data in zip(cast, before, strict=True):
            parameter.data = data


def _tables(
    module: nn.Module, dtype: torch.dtype | None
) -> Iterator[tuple[dict[str, Any], torch.dtype | None]]:
    """Yield a module's own tables of weights, and the dtype to record each in."""
    yield module._parameters, dtype  # noqa: SLF001 - setattr would check the fakes
    yield module._buffers, None  # noqa: SLF001


def _check_recordable(name: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, UninitializedBuffer | UninitializedParameter):
        message = f"parameter {name!r} is not initialised yet (lazy module)"
        raise CaptureError(message, hint="run the model once before partitioning it")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        message = (
            f"{name!r} is a tensor of layout {layout}: only dense ones are recorded"
        )
        hint = "register its indices and values, and build the sparse tensor in forward"
        raise CaptureError(message, hint=hint)


def refresh_flat_weights(module: nn.Module) -> None:
    """RNNs keep a second list of their weights, which must follow the swap."""
    names = module.__dict__.get("_flat_weights_names")
    if names is not None:
        flat = [getattr(module, name, None) for name in names]
        module.__dict__["_flat_weights"] = flat


def _alias_shared_modules(model: nn.Module, aliases: dict[str, str]) -> None:
    """Add the names under which a module registered twice is also known."""
    first = {id(module): path for path, module in model.named_modules()}
    for path, module in model.named_modules(remove_duplicate=False):
        known = first[id(module)]
        if known == path:
            continue
        for name in (name for table, _ in _tables(module, None) for name in table):
            full = f"{path}.{name}" if path else name
            original = f"{known}.{name}" if known else name
            if original in aliases:
                aliases[full] = aliases[original]


def cache_configs(model: nn.Module) -> tuple[object, ...]:
    """Return the configuration objects that switch key/value caches on."""
    found: dict[int, object] = {}
    for module in model.modules():
        config = module.__dict__.get("config")
        if getattr(config, "use_cache", None) is True:
            found[id(config)] = config
    return tuple(found.values())


@contextmanager
def caches_off(configs: tuple[object, ...]) -> Iterator[None]:
    """Set ``use_cache`` to False on every configuration for the duration."""
    for config in configs:
        config.use_cache = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True  # type: ignore[attr-defined]
