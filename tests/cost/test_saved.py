from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve
from partitioner.cost.fused import FusedKernels
from partitioner.graph import info
from tests.zoo.entry import built, example
from tests.zoo.prices import Kept
from tests.zoo.registry import ENTRIES

BATCH, LENGTH, HIDDEN, HEADS = 2, 64, 64, 4
MATRIX = HEADS * BATCH * LENGTH**2
ACTIVATION = LENGTH * BATCH * HIDDEN
STATISTICS = 2 * 4 * LENGTH * BATCH
"""Mean and deviation of one layer norm, in float32."""


class GptLayer(nn.Module):
    """A layer of GPT with dropout, attention by hand or fused."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)
        self.drop = nn.Dropout(0.1)

    def attend(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        else:
            out = F.dropout((q @ k.mT).softmax(-1), 0.1) @ v
        return out.transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.drop(self.out(self.attend(self.norms[0](x))))
        return x + self.drop(self.down(F.gelu(self.up(self.norms[1](x)))))


def priced(model, example, device="h100", dtype=torch.bfloat16):
    return price(capture(model, example, dtype=dtype), profile=resolve(device))


def layer_of(fused, device="h100"):
    """Price a layer behind a linear one, so that its input needs a gradient."""
    model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), GptLayer(fused))
    costed = priced(model, torch.randn(BATCH, LENGTH, HIDDEN), device)
    return [cost for node, cost in costed.costs.items() if node.target != "0"]


def test_a_gpt_layer_keeps_what_its_published_formula_says():
    # Korthikanti et al., Reducing Activation Recomputation in Large Transformer
    # Models, 2022, equation 1: sbh (34 + 5 a s / h) bytes in half precision.
    saved = sum(cost.saved_bytes for cost in layer_of(fused=False))

    assert saved == 34 * ACTIVATION + 5 * MATRIX + 2 * STATISTICS


def test_fused_attention_keeps_a_sum_for_each_row_in_place_of_the_matrix():
    # Dao et al., FlashAttention, 2022, section 3.1: the output and the softmax
    # statistics of each row are kept; the dropout mask is drawn again from its seed.
    saved = sum(cost.saved_bytes for cost in layer_of(fused=True))

    rows, seed = 4 * HEADS * BATCH * LENGTH, 24
    assert saved == 34 * ACTIVATION + rows + seed + 2 * STATISTICS


def test_a_gpt_layer_computes_what_its_published_formula_says():
    # Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
    # Using Megatron-LM, 2021, appendix: 24 b s h² + 4 b s² h, backward twice that.
    costs = layer_of(fused=False)

    forward = 24 * ACTIVATION * HIDDEN + 4 * ACTIVATION * LENGTH
    assert sum(cost.forward_flops for cost in costs) == forward
    assert sum(cost.backward_flops for cost in costs) == 2 * forward


def test_a_cpu_keeps_dropout_masks_as_numbers_and_the_matrix_too():
    masks = 2 * ACTIVATION + MATRIX
    on_cpu = sum(cost.saved_bytes for cost in layer_of(fused=False, device="cpu"))
    on_gpu = sum(cost.saved_bytes for cost in layer_of(fused=False))

    half_of_both_statistics = STATISTICS
    assert on_cpu - on_gpu == masks - half_of_both_statistics
    assert sum(cost.saved_bytes for cost in layer_of(fused=True, device="cpu")) > on_gpu


@pytest.mark.parametrize("mask", ["bool", "float"])
def test_a_mask_is_kept_in_the_type_of_the_numbers(mask):
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, mask)

    seen = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    given = seen if mask == "bool" else seen.to(torch.bfloat16)
    costed = priced(Attends(), (torch.randn(BATCH, LENGTH, HIDDEN), given))

    (cost,) = [
        cost
        for node, cost in costed.costs.items()
        if node.target is F.scaled_dot_product_attention
    ]
    qkv_and_out, rows, seed = 2 * (3 + 1) * ACTIVATION, 4 * HEADS * BATCH * LENGTH, 16
    assert cost.saved_bytes == qkv_and_out + rows + seed + 2 * BATCH * LENGTH**2


@pytest.mark.parametrize(("kind", "widths"), [(nn.LSTM, 5), (nn.GRU, 6), (nn.RNN, 1)])
def test_a_fused_recurrence_keeps_gates_and_states_of_each_position(kind, widths):
    # Greff et al., LSTM: A Search Space Odyssey, 2017, appendix A: backward needs the
    # four gates and the cell's state of each position. cuDNN's GRU keeps six widths.
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(8, 8)
            self.rnn = kind(8, 32, num_layers=2)

        def forward(self, x):
            return self.rnn(self.before(x))[0]

    costed = priced(Reads(), torch.randn(16, 4, 8))

    (cost,) = [c for node, c in costed.costs.items() if node.target == "rnn"]
    rows = 2 * 16 * 4
    states = 2 * 4 * 2 * 32 * (2 if kind is nn.LSTM else 1)
    # The input, both layers' reserves, the lower layer's output, the result.
    assert cost.saved_bytes == rows * (8 + 2 * widths * 32 + 32 + 32) + states


def test_a_convolution_keeps_its_input_and_nothing_else():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3, stride=2))

    costed = priced(model, torch.randn(2, 3, 16, 16))

    saved = [cost.saved_bytes for cost in costed.costs.values() if cost.forward_flops]
    assert saved == [2 * 2 * 3 * 16 * 16, 2 * 2 * 4 * 14 * 14]


def test_a_loss_over_a_vocabulary_keeps_its_logarithms():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(HIDDEN, 100)

        def forward(self, x, labels):
            return F.cross_entropy(self.head(x), labels)

    costed = priced(Model(), (torch.randn(6, HIDDEN), torch.zeros(6).long()))

    (cost,) = [c for n, c in costed.costs.items() if n.target is F.cross_entropy]
    total_weight = 2
    assert cost.saved_bytes == 2 * 6 * 100 + 8 * 6 + total_weight


class Adapted(nn.Module):
    """A frozen layer with a low-rank update (Hu et al., LoRA, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(32, 48, bias=False).requires_grad_(False)
        self.down = nn.Linear(32, 4, bias=False)
        self.up = nn.Linear(4, 48, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class AdaptedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(32, 32, bias=False).requires_grad_(False)
        self.first = Adapted()
        self.middle = nn.Linear(48, 32, bias=False).requires_grad_(False)
        self.second = Adapted()

    def forward(self, x):
        return self.second(self.middle(self.first(self.frozen(x))))


def test_frozen_weights_owe_no_gradient_and_keep_nothing():
    costed = priced(AdaptedTwice(), torch.randn(10, 32), dtype=torch.float32)

    by_name = {str(node.target): cost for node, cost in costed.costs.items()}
    rows = 2 * 10
    backward = {name: cost.backward_flops for name, cost in by_name.items()}
    assert backward["frozen"] == backward["first.base"] == 0  # nothing before learns
    assert backward["first.down"] == rows * 32 * 4  # its input owes no gradient
    assert backward["first.up"] == 2 * rows * 4 * 48
    assert backward["middle"] == rows * 48 * 32  # hands on, learns nothing
    assert backward["second.base"] == rows * 32 * 48
    assert backward["second.down"] == 2 * rows * 32 * 4
    kept = {name: cost.saved_bytes for name, cost in by_name.items()}
    assert kept["frozen"] == kept["first.base"] == kept["middle"] == 0
    assert kept["second.base"] == 0
    assert kept["first.down"] == kept["second.down"] == 4 * 10 * 32
    assert kept["first.up"] == kept["second.up"] == 4 * 10 * 4


def test_frozen_weights_have_no_gradient_and_no_optimizer_state():
    costed = priced(AdaptedTwice(), torch.randn(10, 32), dtype=torch.float32)

    statement, _ = problem(costed, stages=1, micro_batches=1, optimizer="adamw")

    frozen, trained = 32 * 32 + 48 * 32 + 2 * 32 * 48, 2 * (32 * 4 + 4 * 48)
    held = sum(unit.static_bytes for unit in statement.units)
    # Frozen: the weight. Trained: weight, gradient and Adam's two moments.
    assert held == 4 * frozen + 4 * 4 * trained


def really_kept(model, *example):
    kept = Kept(model)
    with saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        output = model(*example)
    assert output is not None  # the graph lives until here
    return kept.nbytes


@pytest.mark.parametrize("name", ["torch transformer", "einops", "recurrent cells"])
def test_a_model_in_bfloat16_keeps_what_it_really_keeps(name):
    entry = ENTRIES[name]
    costed = priced(built(entry), example(entry), device="cpu")
    inputs = example(entry)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    inputs = [x.bfloat16() if x.is_floating_point() else x for x in inputs]

    expected = really_kept(built(entry).bfloat16(), *inputs)

    assert costed.total.saved_bytes == pytest.approx(expected, rel=0.02)


def test_a_model_under_autocast_keeps_the_casts_of_its_weights_too():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)
            )

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layers(x).float().softmax(-1)

    x = torch.randn(10, 32)
    costed = priced(Model(), x, device="cpu", dtype=None)

    assert costed.total.saved_bytes == pytest.approx(really_kept(Model(), x), rel=0.02)


def test_each_memory_is_kept_once_however_many_read_it():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.drop = nn.Dropout(0.5)
            self.readers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            h = self.drop(self.first(x))
            return sum(reader(h) for reader in self.readers)

    costed = priced(Model(), torch.randn(10, 8))

    kept = {info(n).id: c.saved_bytes for n, c in costed.costs.items() if c.saved_bytes}
    assert list(kept.values()) == [2 * 80, 80, 2 * 80]


class Grouped(nn.Module):
    """Four heads that share two keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HIDDEN)
        self.kv = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_what_no_kernel_takes_is_products_and_keeps_the_matrix():
    def attention(dtype):
        costed = priced(Grouped(), torch.randn(BATCH, LENGTH, HIDDEN), dtype=dtype)
        (cost,) = [
            cost
            for node, cost in costed.costs.items()
            if node.target is F.scaled_dot_product_attention
        ]
        return cost

    half, full = attention(torch.bfloat16), attention(torch.float32)
    assert half.saved_bytes < 2 * MATRIX  # q, k, v and the result are less than it
    assert full.saved_bytes > 4 * MATRIX
    # A fused backward computes the matrix again; products kept it.
    assert half.backward_flops == 5 * half.forward_flops // 2
    assert full.backward_flops == 2 * full.forward_flops == 2 * half.forward_flops


class Projected(nn.Module):
    """Attention in products, and the projection that keeps its result."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Grouped()
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        return self.out(self.attention(x).transpose(1, 2).reshape(x.shape))


def test_a_layer_behind_products_keeps_their_result():
    model, x = Projected(), torch.randn(BATCH, LENGTH, HIDDEN)
    with sdpa_kernel(SDPBackend.MATH):
        kept = really_kept(model, x)
    costs = priced(model, x, dtype=torch.float32).costs.values()
    assert sum(cost.saved_bytes for cost in costs) == kept


def test_a_softmax_s_backward_needs_a_matrix_more_on_a_gpu():
    class Softmax(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x):
            return self.rows(x).softmax(-1)

    def held(device):
        x = torch.randn(BATCH, LENGTH, HIDDEN)
        costed = priced(Softmax(), x, device, dtype=torch.float32)
        return max(
            cost.transient_bytes
            for node, cost in costed.costs.items()
            if node.target == "softmax"
        )

    matrix = 4 * BATCH * LENGTH * HIDDEN
    assert held("cpu") == 2 * matrix  # the gradients of result and argument
    assert held("h100") == 3 * matrix


class Biased(nn.Module):
    def __init__(self, *, learns: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.bias = nn.Parameter(
            torch.randn(1, HEADS, LENGTH, LENGTH), requires_grad=learns
        )

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, self.bias)


def test_attention_whose_bias_learns_keeps_the_matrix_in_float32():
    def attention(*, learns):
        x, half = torch.randn(BATCH, LENGTH, HIDDEN), torch.bfloat16
        costed = priced(Biased(learns=learns), x, dtype=half)
        (cost,) = [
            cost
            for node, cost in costed.costs.items()
            if node.target is F.scaled_dot_product_attention
        ]
        return cost

    fused, products = attention(learns=False), attention(learns=True)
    assert fused.backward_flops == 5 * fused.forward_flops // 2
    assert products.backward_flops == 2 * products.forward_flops
    matrix = 4 * BATCH * HEADS * LENGTH**2
    assert products.saved_bytes - fused.saved_bytes >= matrix
    assert products.forward_s > fused.forward_s


@pytest.mark.parametrize(
    ("dtype", "causal"),
    [(torch.float32, True), (torch.float32, False), (torch.bfloat16, False)],
)
def test_products_are_what_attention_computes(dtype, causal):
    q = torch.randn(2, 4, 5, 8, dtype=dtype)
    k, v = torch.randn(2, 2, 2, 5, 8, dtype=dtype)
    bias = None if causal else torch.randn(1, 4, 5, 5, dtype=dtype, requires_grad=True)
    options = {"is_causal": causal, "enable_gqa": True, "scale": 0.3}
    expected = F.scaled_dot_product_attention(q, k, v, bias, **options)
    with FusedKernels() as mode:
        found = F.scaled_dot_product_attention(q, k, v, bias, **options)
    assert mode.used
    torch.testing.assert_close(found, expected)


def test_dropout_is_one_kernel_on_an_accelerator():
    costs = [
        cost
        for device in ("cpu", "h100")
        for node, cost in priced(
            nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(9, 8), device
        ).costs.items()
        if node.target == "1"
    ]

    read, written, mask = 2 * 72, 2 * 72, 72
    assert costs[1].forward_bytes == read + written + mask
    assert costs[0].forward_bytes > costs[1].forward_bytes
