from __future__ import annotations

import copy
import operator
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from partitioner.capture import capture
from partitioner.cost import price, resolve
from partitioner.cost.replay import Replay
from partitioner.graph import Region, info
from tests.cost import models
from tests.cost.handmade import GraphBuilder, meta


def reference_flops(model, inputs):
    """FLOPs of the original model, forward and backward, by torch's own counter."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
    with FlopCounterMode(display=False) as counter:
        output = model(*args, **kwargs)
        forward = counter.get_total_flops()
        values = dict(output) if isinstance(output, dict) else output
        leaves = [leaf for leaf in tree_leaves(values) if _learns(leaf)]
        torch.stack([leaf.sum() for leaf in leaves]).sum().backward()
    return forward, counter.get_total_flops() - forward


def _learns(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@pytest.mark.parametrize("name", models.NAMES)
def test_totals_agree_with_torchs_counter_on_the_original_model(name):
    model, inputs = models.build(name)
    # Fused CPU attention is unknown to torch's counter: separate products are not.
    with sdpa_kernel(SDPBackend.MATH):
        graph = capture(model, example_inputs=inputs, dtype=None)
        costed = price(graph, profile=resolve("cpu"))
        forward, backward = reference_flops(model, inputs)

    assert costed.total.forward_flops == pytest.approx(forward, rel=0.01)
    assert costed.total.backward_flops == pytest.approx(backward, rel=0.01)
    assert not costed.unpriced


def test_saved_bytes_are_what_autograd_really_keeps():
    model, x = models.build("mlp")
    costed = price(capture(model, example_inputs=x, dtype=None), profile=resolve("cpu"))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)

    assert output.requires_grad
    assert costed.total.saved_bytes == sum(kept.values()) > 0


def test_equal_nodes_run_once(monkeypatch):
    ran = []
    run = Replay.run

    def counting(self, node, arguments):
        ran.append(node)
        return run(self, node, arguments)

    monkeypatch.setattr(Replay, "run", counting)
    layers = [layer for _ in range(10) for layer in (nn.Linear(8, 8), nn.ReLU())]
    graph = capture(
        nn.Sequential(*layers), example_inputs=torch.randn(2, 8), dtype=None
    )

    costed = price(graph, profile=resolve("cpu"))

    # The first layer's input needs no gradient.
    assert len(ran) == 3
    assert len({cost.backward_flops for cost in costed.costs.values()}) == 3


def test_settings_of_a_module_keep_prices_apart():
    # The first is apart from the others, since its input needs no gradient.
    layers = [nn.Conv1d(4, 4, 3, padding=padding) for padding in (1, 1, 9)]
    graph = capture(
        nn.Sequential(*layers), example_inputs=torch.randn(2, 4, 8), dtype=None
    )

    costed = price(graph, profile=resolve("cpu"))

    flops = [cost.forward_flops for cost in costed.costs.values()]
    assert flops[2] == 2 * 2 * 4 * 4 * 3 * 8
    assert flops[3] == 2 * 2 * 4 * 4 * 3 * (8 + 16)


def test_the_users_module_is_left_as_it_was():
    model, x = models.build("resnet")
    model.eval()
    before = copy.deepcopy(model.state_dict())
    graph = capture(model, example_inputs=x, dtype=None)

    price(graph, profile=resolve("cpu"))

    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_model_on_meta_is_priced_like_the_real_one():
    real, inputs = models.build("llama")
    with torch.device("meta"):
        empty = type(real)(real.config)

    costs = [
        price(
            capture(model, example_inputs=inputs, dtype=torch.bfloat16),
            profile=resolve("h100"),
        ).total
        for model in (real, empty)
    ]

    assert costs[0] == costs[1]


def test_an_operator_without_a_rule_is_reported_with_its_place_and_count():
    builder = GraphBuilder()
    x = builder.input("x", meta(4, 8))
    for line in (7, 8):
        x = builder.call(
            torch.fft.fft,
            x,
            out=meta(4, 8, dtype=torch.complex64),
            facts={"module": "mixer", "source": f"net.py:{line}"},
        )

    costed = price(builder.build(), profile=resolve("cpu"))

    (item,) = [one for one in costed.unpriced if "r2c" in one.operator]
    assert (item.module, item.source, item.count) == ("mixer", "net.py:7", 1)
    (item,) = [one for one in costed.unpriced if "c2c" in one.operator]
    # Forward and backward of the second call, backward of the first.
    assert item.count == 3
    assert costed.costs[x].forward_s > 0
    assert not costed.costs[x].forward_flops


def test_an_operation_that_fake_tensors_refuse_is_reported_and_priced_by_its_bytes():
    def stubborn(x):
        raise NotImplementedError("no kernel\nsecond line")

    builder = GraphBuilder()
    x = builder.input("x", meta(4, 8))
    nodes = [builder.call(stubborn, x, out=meta(4, 16)) for _ in range(2)]

    costed = price(builder.build(), profile=resolve("cpu"))

    (item,) = costed.unpriced
    assert item.operator == "stubborn"
    assert item.count == 2
    assert "NotImplementedError: no kernel" in item.reason
    assert "second line" not in item.reason
    for node in nodes:
        assert costed.costs[node].forward_bytes == 4 * (4 * 8 + 4 * 16)


class Routes(torch.nn.Module):
    """Sends every row to the weights that its values ask for: fakes cannot."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.fails = fails

    def forward(self, x):
        positive = x.sum(-1) > 0
        out = torch.zeros_like(x)
        for choice, expert in zip((positive, ~positive), self.experts, strict=True):
            (rows,) = torch.where(choice)
            out = out.index_add(0, rows, expert(x[rows]))
        if self.fails and not isinstance(x, FakeTensor) and x.std() < 0.1:
            raise ValueError("these are no real numbers")
        return out


def routed(fails):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Routes(fails))
    graph = capture(model, torch.randn(16, 8))
    costed = price(graph, profile=resolve("cpu"))
    (cost,) = [cost for node, cost in costed.costs.items() if node.target == "1"]
    return cost, costed.unpriced


def test_a_leaf_that_fakes_refuse_is_priced_by_a_run_on_random_numbers():
    cost, unpriced = routed(fails=False)
    assert cost.forward_flops == 2 * 16 * 8 * 8  # every row meets one expert
    assert cost.backward_flops == 2 * cost.forward_flops
    assert cost.forward_s > 0
    assert not unpriced


def test_a_leaf_that_cannot_run_is_priced_by_its_weights_and_reported():
    cost, (unpriced,) = routed(fails=True)
    assert cost.forward_flops == 2 * 16 * 2 * (8 * 8 + 8)
    assert cost.backward_flops == 2 * cost.forward_flops
    assert "every weight met every row" in unpriced.reason


def test_gradients_of_a_shared_result_are_summed_at_its_producer():
    builder = GraphBuilder()
    x = builder.input("x", meta(4, 8))
    alone = builder.call(torch.tanh, x, out=meta(4, 8))
    shared = builder.call(torch.tanh, alone, out=meta(4, 8))
    for _ in range(3):
        builder.call(torch.tanh, shared, out=meta(4, 8))

    costed = price(builder.build(), profile=resolve("cpu"))

    extra = costed.costs[shared].backward_bytes - costed.costs[alone].backward_bytes
    assert extra == 2 * 3 * (4 * 4 * 8)


def test_each_reader_of_a_parameter_adds_to_its_gradient():
    model = nn.ModuleDict({"fc": nn.Linear(8, 16, bias=False)})
    frozen = copy.deepcopy(model).requires_grad_(False)

    def backward_bytes(model):
        builder = GraphBuilder(model)
        x = builder.input("x", meta(1, 8))
        w = builder.weight("fc.weight")
        node = builder.call(F.linear, x, w, out=meta(1, 16))
        costed = price(builder.build(), profile=resolve("cpu"))
        assert costed.costs[w].backward_bytes == 0
        return costed.costs[node].backward_bytes

    product = 4 * (8 + 16 + 8 * 16)
    adding = 3 * 4 * 8 * 16
    assert backward_bytes(model) - backward_bytes(frozen) == product + adding


def test_a_lookup_reads_its_rows_and_not_the_table():
    model = nn.ModuleDict({"table": nn.Embedding(10_000, 8)})
    builder = GraphBuilder(model)
    ids = builder.input("ids", meta(2, 3, dtype=torch.int64))
    node = builder.call("table", ids, out=meta(2, 3, 8))

    costed = price(builder.build(), profile=resolve("cpu"))

    assert costed.costs[node].forward_bytes == 2 * 4 * (6 * 8) + 8 * 6
    assert costed.costs[node].parameter_bytes == 4 * 10_000 * 8


def test_views_weights_sizes_and_constants_cost_nothing():
    model, inputs = models.build("gpt2")
    costed = price(
        capture(model, example_inputs=inputs, dtype=None), profile=resolve("h100")
    )

    for node, cost in costed.costs.items():
        free = info(node).kind in {"weight", "size", "constant", "input", "output"}
        if free or node.target in {"view", "transpose"}:
            assert cost.forward_s == 0
            assert cost.forward_bytes == 0


def test_writes_in_place_are_priced():
    builder = GraphBuilder()
    x = builder.input("x", meta(4, 8))
    node = builder.call(
        "add_", x, 1.0, out=meta(4, 8), facts={"writes": (info(x).outputs[0].storage,)}
    )

    costed = price(builder.build(), profile=resolve("cpu"))

    assert not costed.unpriced
    assert costed.costs[node].forward_bytes == 2 * 4 * (4 * 8)


def test_an_operation_that_warns_is_priced_all_the_same(recwarn):
    def talkative(x):
        warnings.warn("again?", stacklevel=1)
        return x @ x

    builder = GraphBuilder()
    x = builder.input("x", meta(4, 4))
    node = builder.call(talkative, x, out=meta(4, 4))

    costed = price(builder.build(), profile=resolve("cpu"))

    assert costed.costs[node].forward_flops == 2 * 4 * 4 * 4
    assert not recwarn.list


def test_autocast_is_entered_where_the_forward_had_it():
    def moved(autocast):
        builder = GraphBuilder()
        x = builder.input("x", meta(512, 512))
        node = builder.call(
            torch.matmul,
            x,
            x,
            out=meta(512, 512),
            facts={"region": Region(autocast=autocast)},
        )
        costed = price(builder.build(), profile=resolve("h100"))
        return costed.costs[node].forward_bytes

    # Two casts, each of which reads float32 and writes bfloat16, and half the product.
    size = 512 * 512
    assert moved(()) == 3 * 4 * size
    assert moved((("cuda", torch.bfloat16),)) == 6 * size + 3 * 2 * size


def test_results_that_nobody_reads_owe_no_gradient():
    def flops(results):
        builder = GraphBuilder()
        x = builder.input("x", meta(4, 4))
        parts = (meta(4, 4), meta(4), meta(4, 4))
        found = builder.call(torch.linalg.svd, x, out=parts)
        for index in results:
            part = builder.call(operator.getitem, found, index, out=parts[index])
            builder.call("tanh", part, out=parts[index])
        costed = price(builder.build(), profile=resolve("cpu"))
        return costed.costs[found].backward_flops

    # For the values alone: u diag(g) vh. The vectors cost more products.
    assert flops([1]) == 2 * 4 * 4 * 4
    assert flops([0, 1, 2]) > 2 * flops([1])
