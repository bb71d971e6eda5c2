"""Whether a module holds the weights that it was registered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RegisteredWeights"]

Held = dict[str, int]
"""Name → id of the parameter or buffer of one module."""


class RegisteredWeights:
    """Remembers every module's own parameters and buffers.

    A forward may call a module with other tensors in their place
    (``torch.func.functional_call``, assignment by hand); a recorded call of the module
    would run on the registered ones.

    Args:
        model: The module, with its weights as they are while it is recorded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._held = {id(module): _held(module) for module in model.modules()}

    def swapped(self, module: nn.Module) -> str:
        """Return the name of the first weight that is another one now; "" if none."""
        for path, inner in module.named_modules():
            before, now = self._held.get(id(inner), {}), _held(inner)
            for name in (*before, *now):
                if before.get(name) != now.get(name):
                    return f"{path}.{name}" if path else name
        return ""

    def accept_buffers(self, module: nn.Module) -> None:
        """Take the buffers that a call of ``module`` has replaced as its own."""
        for inner in module.modules():
            buffers = {name: id(tensor) for name, tensor in inner._buffers.items()}  # noqa: SLF001 - nn.Module's own table
            self._held.setdefault(id(inner), {}).update(buffers)


def _held(module: nn.Module) -> Held:
    tables = (module._parameters, module._buffers)  # noqa: SLF001 - nn.Module's own tables
    return {name: id(tensor) for table in tables for name, tensor in table.items()}
