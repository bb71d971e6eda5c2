"""Random draws that are steered: a module may draw which of its layers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXTREMES", "ForcedDraws"]

EXTREMES = (1 - 2**-24, 0.0)
"""The largest and the least that ``torch.rand`` returns in float32."""


class ForcedDraws(TorchFunctionMode):
    """Lets ``torch.rand`` return one number wherever it draws a single one.

    A number that decides whether a layer runs is drawn alone and compared with a rate
    (LayerDrop: Fan et al., *Reducing Transformer Depth on Demand*, 2020); at one end of
    its range every layer runs. Tensors of numbers are drawn as ever.

    Args:
        value: The number.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value
        self.used = False
        """Whether a single number was drawn."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``; fill a single drawn number with the value."""
        out = func(*args, **(kwargs or {}))
        if func in (torch.rand, torch.rand_like) and out.numel() == 1:
            with torch.no_grad():
                out.fill_(self._value)
            self.used = True
        return out
