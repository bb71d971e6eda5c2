from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from partitioner import Cost, OptionError, Plan, partition
from partitioner.capture import capture
from partitioner.cost import find_given, price, resolve, with_given


class Mixer(nn.Module):
    """A Fourier transform: an operator whose FLOPs nobody counts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(8, 8)

    def forward(self, x):
        return torch.fft.fft(self.weight(x)).real


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixer() for _ in range(4))
        self.head = nn.Linear(8, 4)
        self.unused = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def graph():
    return capture(Model(), torch.randn(3, 8))


def priced(graph, costs):
    found = find_given(graph, costs)
    return with_given(price(graph, profile=resolve("cpu")), found)


def costs_of(costed, module):
    return [
        cost
        for node, cost in costed.costs.items()
        if node.meta["info"].module.startswith(module)
    ]


def test_an_operators_cost_counts_at_each_call_and_it_is_priced_then(graph):
    before = priced(graph, {})
    after = priced(graph, {"fft_fft": Cost(forward_flops=600, backward_flops=900)})

    added = after.total.forward_flops - before.total.forward_flops
    assert added == 4 * 600
    assert after.total.backward_flops - before.total.backward_flops == 4 * 900
    assert {item.operator for item in before.unpriced} >= {"_fft_r2c", "_fft_c2c"}
    assert not any("_fft_r2c" in item.operator for item in after.unpriced)


def test_seconds_follow_from_flops_where_none_are_given(graph):
    rate = resolve("cpu").flops_per_s("float32", "matmul")

    after = priced(graph, {"head": Cost(forward_flops=10**9)})
    (cost,) = costs_of(after, "head")

    assert cost.forward_s == pytest.approx(10**9 / rate)
    given = priced(graph, {"head": Cost(forward_flops=10**9, forward_s=2.0)})
    assert costs_of(given, "head")[0].forward_s == 2.0


def test_seconds_that_are_given_have_counted_the_host(graph):
    plain = price(graph, profile=resolve("cpu"))
    costed = replace(
        plain,
        costs={
            node: replace(cost, host_s=3 * (cost.forward_s + cost.backward_s))
            for node, cost in plain.costs.items()
        },
    )

    def host_s(**figures):
        given = find_given(graph, {"head": Cost(**figures)})
        return costs_of(with_given(costed, given), "head")[0].host_s

    (before,) = costs_of(costed, "head")
    assert host_s(saved_bytes=7) == before.host_s
    assert host_s(forward_flops=1) == before.host_s
    assert host_s(forward_s=1.0) == pytest.approx(3 * before.backward_s)
    assert host_s(forward_s=1.0, backward_s=2.0) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("pattern", ["layers.*", Mixer, "layers.[0-3]"])
def test_a_modules_cost_is_shared_among_its_operations(graph, pattern):
    cost = Cost(forward_s=1.0, backward_flops=1001, saved_bytes=77)
    before, after = priced(graph, {}), priced(graph, {pattern: cost})

    for index in range(4):
        module = f"layers.{index}"
        inside = costs_of(after, module)
        assert sum(one.forward_s for one in inside) == pytest.approx(1.0)
        assert sum(one.backward_flops for one in inside) == 1001
        assert sum(one.saved_bytes for one in inside) == 77
        shares = [one.forward_s for one in inside]
        old = [one.forward_s for one in costs_of(before, module)]
        assert shares == pytest.approx([one / sum(old) for one in old])
    assert costs_of(after, "head") == costs_of(before, "head")


def test_later_entries_win_where_two_overlap(graph):
    costs = {"layers.*": Cost(forward_s=1.0), "layers.2": Cost(forward_s=3.0)}

    after = priced(graph, costs)

    seconds = [
        sum(cost.forward_s for cost in costs_of(after, f"layers.{index}"))
        for index in range(4)
    ]
    assert seconds == pytest.approx([1.0, 1.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({"layerz.*": Cost(forward_s=1)}, "layerz"),
        ({nn.Conv2d: Cost(forward_s=1)}, "Conv2d"),
        ({"unused": Cost(forward_s=1)}, "unused is not called"),
        ({"head": 3.0}, "head has 3.0"),
        ({3: Cost(forward_s=1)}, "neither a name nor a class"),
        ([("head", Cost(forward_s=1))], "costs is a list"),
    ],
)
def test_costs_of_nothing_are_refused(graph, costs, text):
    with pytest.raises(OptionError, match=text):
        find_given(graph, costs)


@pytest.mark.parametrize(
    "figures",
    [{}, {"forward_s": -1.0}, {"forward_flops": "many"}, {"saved_bytes": float("nan")}],
)
def test_a_cost_must_say_something_sensible(figures):
    with pytest.raises(OptionError, match="a Cost"):
        Cost(**figures)


def test_given_costs_move_the_cut_and_are_kept_and_shown(tmp_path):
    model, x = Model(), torch.randn(3, 8)
    costs = {"head": Cost(forward_s=1.0, backward_s=2.0)}

    plain = partition(model, 2, example_inputs=x, device="cpu")
    plan = partition(model, 2, example_inputs=x, device="cpu", costs=costs)

    assert plan.stages[1].modules == ("head",)
    assert plain.stages[1].modules != ("head",)
    assert "given costs" in str(plan)
    assert "head: forward 1.00 s, backward 2.00 s" in str(plan)
    assert "given costs" not in str(plain)
    path = tmp_path / "plan.json"
    plan.save(path)
    assert json.loads(path.read_text())["costs"][0]["pattern"] == "head"
    loaded = Plan.load(path, model)
    assert loaded.costed.total == plan.costed.total
    assert loaded.stages == plan.stages


def test_a_formula_registered_with_torch_prices_an_operator(graph):
    operator = torch.ops.aten._fft_r2c
    before = priced(graph, {})

    @register_flop_formula(operator)
    def transform(shape, *args, out_shape=None, **kwargs):
        return 5 * shape[0] * shape[1]

    try:
        after = priced(graph, {})
    finally:
        flop_registry.pop(operator)

    added = after.total.forward_flops - before.total.forward_flops
    assert added == 4 * 5 * 3 * 8
    assert "_fft_r2c" not in {item.operator for item in after.unpriced}
