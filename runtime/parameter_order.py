"""An order of parameters in which one memory for all of them leaves each aligned.

DeepSpeed's optimizers for bfloat16, and its ZeRO, move a group's parameters into one
tensor, one directly after the other. Behind a bias of 1,000 elements all weights then
begin at odd places: on an H200 the matrix products of a vision transformer took 48 %
longer there, and convolutions ran in kernels without tensor cores.

Not with ZeRO's ``round_robin_gradients``, which changes the order once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

__all__ = ["ALIGNED", "aligned"]

ALIGNED = 128
"""Elements: 256 bytes in a type of two, as torch's own allocations begin at multiples
of 512 bytes, and GPUs move memory in pieces of up to 128."""


def aligned(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return parameters so that each begins at a multiple of what divides its size.

    Of powers of two, up to ``ALIGNED``: first those whose number of elements is
    divided by the largest, last those with an odd number. Else they stay in order.

    Args:
        parameters: Of one group, which begins at an aligned address.
    """
    return sorted(parameters, key=_divided_by, reverse=True)


def _divided_by(parameter: nn.Parameter) -> int:
    count = parameter.numel()
    return min(count & -count, ALIGNED)
