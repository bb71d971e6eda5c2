from __future__ import annotations

import pytest
import torch
from fvcore.nn import jit_handles
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from partitioner.cost import price, resolve
from partitioner.cost.flops import FORMULAS, for_grouped_heads, rnn_layer_flops
from tests.cost.handmade import GraphBuilder, meta


def priced(model, target, *inputs, out, **options):
    """Price one call of ``target`` on inputs of the given kinds."""
    builder = GraphBuilder(model)
    nodes = [
        builder.input(f"x{index}", tensor) if hasattr(tensor, "storage") else tensor
        for index, tensor in enumerate(inputs)
    ]
    node = builder.call(target, *nodes, out=out, **options)
    builder.output(node)
    costed = price(builder.build(), profile=resolve("cpu"))
    assert not costed.unpriced
    return costed.costs[node]


def test_a_linear_layer_is_two_flops_per_multiply_add():
    model = nn.ModuleDict({"fc": nn.Linear(8, 16)})

    cost = priced(model, "fc", meta(3, 5, 8), out=meta(3, 5, 16))

    assert cost.forward_flops == 2 * 15 * 8 * 16
    # The gradients of both operands.
    assert cost.backward_flops == 2 * cost.forward_flops


def test_the_first_layer_owes_its_input_no_gradient():
    model = nn.ModuleDict({"fc": nn.Linear(8, 16)})

    cost = priced(model, "fc", meta(3, 8, requires_grad=False), out=meta(3, 16))

    assert cost.backward_flops == cost.forward_flops


def test_a_frozen_layer_owes_its_weight_no_gradient():
    model = nn.ModuleDict({"fc": nn.Linear(8, 16).requires_grad_(False)})

    cost = priced(model, "fc", meta(3, 8), out=meta(3, 16))

    assert cost.backward_flops == cost.forward_flops


def test_what_runs_without_gradients_has_no_backward():
    model = nn.ModuleDict({"fc": nn.Linear(8, 16)})

    cost = priced(model, "fc", meta(3, 8), out=meta(3, 16, requires_grad=False))

    assert cost.forward_flops
    assert not cost.backward_flops
    assert not cost.backward_s


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_one_product_per_output_position(groups):
    model = nn.ModuleDict({"conv": nn.Conv2d(4, 6, 3, padding=1, groups=groups)})

    cost = priced(model, "conv", meta(2, 4, 10, 10), out=meta(2, 6, 10, 10))

    assert cost.forward_flops == 2 * (2 * 10 * 10) * 6 * (4 // groups) * 9


def test_attention_is_two_products_forward_and_five_in_a_fused_backward():
    shape = (2, 4, 16, 8)
    product = 2 * (2 * 4) * 16 * 16 * 8

    cost = priced(
        None, F.scaled_dot_product_attention, *[meta(*shape)] * 3, out=meta(*shape)
    )

    assert cost.forward_flops == 2 * product
    assert cost.backward_flops == 5 * product


def test_dropout_does_not_keep_an_accelerator_from_fusing_attention():
    def moved_bytes(device, dropout):
        builder = GraphBuilder()
        sources = [builder.input(name, meta(2, 4, 512, 64)) for name in "qkv"]
        node = builder.call(
            F.scaled_dot_product_attention,
            *sources,
            None,
            dropout,
            out=meta(2, 4, 512, 64),
        )
        costed = price(builder.build(), profile=resolve(device))
        return costed.costs[node].forward_bytes

    assert moved_bytes("h100", 0.1) == moved_bytes("h100", 0.0)
    assert moved_bytes("cpu", 0.1) > moved_bytes("cpu", 0.0)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_recurrent_stack_is_one_cell_per_layer_direction_and_position(
    kind, gates, batch_first
):
    rnn = kind(8, 16, num_layers=2, bidirectional=True, batch_first=batch_first)
    model = nn.ModuleDict({"rnn": rnn})
    shape = (3, 5) if batch_first else (5, 3)

    cost = priced(
        model,
        "rnn",
        meta(*shape, 8),
        out=(meta(*shape, 32), meta(4, 3, 16)),
    )

    first = 2 * (15 * gates * 16 * (8 + 16) * 2)
    second = 2 * (15 * gates * 16 * (32 + 16) * 2)
    assert cost.forward_flops == first + second
    # The state before the first position is zero: it needs no gradient.
    states = 2 * 2 * (2 * 3 * gates * 16 * 16)
    assert cost.backward_flops == 2 * cost.forward_flops - states


def test_a_recurrent_formula_agrees_with_running_it_step_by_step():
    """The CPU's GRU is unrolled into products that torch's counter knows."""
    gru = nn.GRU(8, 16)
    x = torch.randn(5, 3, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        result = gru(x)[0]
        forward = counter.get_total_flops()
        result.sum().backward()

    cost = priced(
        nn.ModuleDict({"rnn": gru}),
        "rnn",
        meta(5, 3, 8),
        out=(meta(5, 3, 16), meta(1, 3, 16)),
    )

    assert cost.forward_flops == forward == rnn_layer_flops(15, 3, 8, 16)
    assert cost.backward_flops == counter.get_total_flops() - forward


def test_a_projected_recurrence_adds_its_projection():
    model = nn.ModuleDict({"rnn": nn.LSTM(8, 16, proj_size=4)})

    cost = priced(
        model,
        "rnn",
        meta(5, 3, 8),
        out=(meta(5, 3, 4), meta(1, 3, 4), meta(1, 3, 16)),
    )

    assert cost.forward_flops == 2 * 15 * (4 * 16 * (8 + 4) + 16 * 4)


class _Shape:
    """What fvcore's handles ask of a value in a traced graph."""

    def __init__(self, *shape):
        self._shape = list(shape)

    def isCompleteTensor(self):
        return True

    def type(self):
        return self

    def sizes(self):
        return self._shape


def test_matrix_products_agree_with_fvcore_which_counts_a_multiply_add_once(
    monkeypatch,
):
    monkeypatch.setattr(jit_handles, "get_shape", lambda value: value.sizes())
    macs = jit_handles.matmul_flop_jit([_Shape(4, 6, 8), _Shape(4, 8, 10)], [])

    cost = priced(None, torch.bmm, meta(4, 6, 8), meta(4, 8, 10), out=meta(4, 6, 10))

    assert cost.forward_flops == 2 * macs


def test_convolutions_agree_with_fvcore_which_counts_a_multiply_add_once():
    macs = jit_handles.conv_flop_count([2, 4, 10, 10], [6, 4, 3, 3], [2, 6, 8, 8])
    model = nn.ModuleDict({"conv": nn.Conv2d(4, 6, 3)})

    cost = priced(model, "conv", meta(2, 4, 10, 10), out=meta(2, 6, 8, 8))

    assert cost.forward_flops == 2 * macs


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        # Rows of the left side go to one group each.
        ((24, 8), (3, 8, 16), (24, 16)),
        # Columns of the right side do.
        ((3, 16, 8), (8, 24), (16, 24)),
        # The inner dimension is what is divided among the groups.
        ((16, 24), (24, 8), (3, 16, 8)),
    ],
)
def test_each_row_of_a_grouped_product_meets_one_group(left, right, out):
    x = torch.zeros(left, dtype=torch.bfloat16)
    y = torch.zeros(right, dtype=torch.bfloat16)
    rows, inner, columns = 24, 8, 16

    assert FORMULAS["_grouped_mm"](x, y, out_val=torch.zeros(out)) == (
        2 * rows * inner * columns
    )


def test_keys_that_several_queries_share_count_for_each_of_them():
    rule = for_grouped_heads("_scaled_dot_product_flash_attention", refuses)
    q, k, v = meta_tensor(2, 8, 5, 4), meta_tensor(2, 2, 7, 4), meta_tensor(2, 2, 7, 4)
    assert rule(q, k, v, out_val=None) == 2 * 2 * 8 * 5 * 7 * (4 + 4)
    name = "_scaled_dot_product_flash_attention_backward"
    backward = for_grouped_heads(name, refuses)
    assert backward(q, q, k, v, out_val=None) == 2 * 2 * 8 * 5 * 7 * 5 * 4


def meta_tensor(*shape):
    return torch.empty(shape, device="meta")


def refuses(*_args, **_kwargs):
    raise AssertionError("shapes are incompatible")
