"""Kernels of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` by formula.

Running them on fake tensors would unroll thousands of positions, and give what the
CPU does rather than the fused kernels of an accelerator.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import torch

from partitioner.cost.flops import rnn_layer_flops
from partitioner.cost.kernels import Kernel, dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from partitioner.cost.slots import Slot

__all__ = ["rnn_kernels", "rnn_saved_bytes"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def rnn_kernels(
    module: nn.RNNBase, source: Slot, dtype: torch.dtype, *, state_learns: bool
) -> tuple[Counter[Kernel], Counter[Kernel]]:
    """Return the kernels of both directions of one call.

    Per layer and direction: one product of all inputs with the input matrix, then a
    product of the state with the recurrent matrix at each position, each followed by
    its gates. Backward: the gradient of the state at each position (but for the first
    state, if that is zero), then two products over all positions for the matrices, and
    one for the layer's input.

    Args:
        module: The module.
        source: Its input, (positions, batch, width) or with batch first or without.
        dtype: Type it computes in.
        state_learns: Whether the state before the first position needs a gradient.
    """
    batched = len(source.shape) == 3  # noqa: PLR2004 (torch's own convention)
    positions, batch = source.shape[:2] if batched else (source.shape[0], 1)
    if batched and module.batch_first:
        positions, batch = batch, positions
    forward: Counter[Kernel] = Counter()
    backward: Counter[Kernel] = Counter()
    for is_first, inputs in _layers(module):
        product, step, cell = _kernels(module, inputs, positions, batch, dtype)
        forward += Counter({product: 1, step: positions})
        steps_back = positions if state_learns else positions - 1
        backward += Counter({step: steps_back, product: 1 if is_first else 2})
        forward[cell] += positions
        backward[cell] += positions
        # Gradient of the recurrent matrix, over all positions at once.
        over_all = Kernel(
            operator_class="matmul",
            dtype=step.dtype,
            flops=step.flops * positions,
            nbytes=product.nbytes,
        )
        backward[over_all] += 1
        if is_first and source.requires_grad:
            backward[product] += 1
    return forward, backward


def _layers(module: nn.RNNBase) -> Iterator[tuple[bool, int]]:
    """Yield (whether it reads the module's input, input width) of each direction."""
    directions = 2 if module.bidirectional else 1
    width = (module.proj_size or module.hidden_size) * directions
    for layer in range(module.num_layers):
        for _ in range(directions):
            yield layer == 0, width if layer else module.input_size


def _kernels(
    module: nn.RNNBase, inputs: int, positions: int, batch: int, dtype: torch.dtype
) -> tuple[Kernel, Kernel, Kernel]:
    gates, hidden = _GATES[module.mode], module.hidden_size
    state = module.proj_size or hidden
    rows, item, name = gates * hidden, dtype.itemsize, dtype_name(dtype)
    total = positions * batch
    product = Kernel(
        operator_class="matmul",
        dtype=name,
        flops=2 * total * rows * inputs,
        nbytes=item * (total * (inputs + rows) + rows * inputs),
    )
    recurrent = rnn_layer_flops(batch, gates, 0, hidden) * state // hidden
    projection = 2 * batch * hidden * module.proj_size
    step = Kernel(
        operator_class="matmul",
        dtype=name,
        flops=recurrent + projection,
        nbytes=item * (batch * (state + rows) + rows * state),
    )
    cell = Kernel(dtype=name, nbytes=item * batch * (rows + 4 * hidden))
    return product, step, cell


_RESERVED = {"LSTM": 5, "GRU": 6, "RNN_TANH": 1, "RNN_RELU": 1}
"""Widths of a state that a fused kernel keeps for each position: LSTM its four gates
and the cell's state (the terms of Greff et al., 2017, equation 5); GRU three gates, the
candidate's product with the state, and the states; a plain recurrence its states. The
reserve of cuDNN 9 on an H200 has exactly these sizes, plus one bit of dropout mask."""

_CPU_LSTM = 15.5
"""Widths of a state in the workspace of a CPU's LSTM in float32 (oneDNN), as torch 2.13
allocates it. Other recurrences run operation by operation there."""


def rnn_saved_bytes(
    module: nn.RNNBase, shape: tuple[int, ...], dtype: torch.dtype, *, fused: bool
) -> int | None:
    """Return what a recurrence keeps beside its arguments and results.

    Args:
        module: The module.
        shape: Shape of its input, in any of torch's layouts.
        dtype: Type it computes in.
        fused: Whether it runs on an accelerator.

    Returns:
        Bytes for all layers and directions, the outputs of lower layers included;
        None if the operations tell on their own.
    """
    widths: float = _RESERVED[module.mode]
    if not fused:
        if module.mode != "LSTM" or dtype != torch.float32 or module.proj_size:
            return None
        widths = _CPU_LSTM
    directions = 2 if module.bidirectional else 1
    rows = math.prod(shape[:-1]) * directions
    between = (module.proj_size or module.hidden_size) * (module.num_layers - 1)
    own = widths * module.hidden_size * module.num_layers
    masks = rows * between / 8 if module.dropout else 0
    return int(rows * (own + between) * dtype.itemsize + masks)
