from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from partitioner.capture import capture
from partitioner.cost import measure, price, problem, resolve
from partitioner.cost.blocks import block_spans
from partitioner.cost.measure.values import Values
from partitioner.cost.measurements import Measurements
from partitioner.cost.work import Work
from partitioner.costed import CostedGraph
from partitioner.graph import ModelGraph
from partitioner.solve import StageScore, score


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu_(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def recorded(layers: int = 3, device: str = "cpu") -> ModelGraph:
    with torch.device(device):
        model = Stack(layers)
    return capture(model, torch.arange(16).reshape(2, 8))


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return recorded()


@pytest.fixture(scope="module")
def timings(graph, tmp_path_factory) -> Measurements:
    return measure(graph, device="cpu", cache_folder=tmp_path_factory.mktemp("cache"))


def test_equal_layers_are_timed_once(graph, timings):
    names = [signature.split()[0] for signature in timings.blocks]
    assert names == ["Layer"]
    linears = [key for key in timings.nodes if key.startswith("Linear ")]
    assert len(linears) == 3  # up, down, head
    assert not timings.failed


def test_signatures_do_not_depend_on_weights_or_objects(graph):
    again = recorded()
    first, second = Work(graph, compiled=False), Work(again, compiled=False)
    pairs = zip(graph.graph.nodes, again.graph.nodes, strict=True)
    assert all(first.of_node(a) == second.of_node(b) for a, b in pairs)
    assert first.of_block(graph.spans[0]) == second.of_block(again.spans[0])


def test_a_block_that_is_compiled_is_another_block(graph):
    eager, compiled = Work(graph, compiled=False), Work(graph, compiled=True)
    span = graph.spans[0]
    assert eager.of_block(span) != compiled.of_block(span)


def test_a_deeper_model_needs_no_new_timing(timings, tmp_path):
    timings.save(tmp_path / "costs.json")
    deeper = recorded(layers=5, device="meta")
    costed = price(
        deeper,
        profile=resolve("cpu"),
        measurements=Measurements.load(tmp_path / "costs.json"),
    )
    assert costed.measured_share == pytest.approx(1.0)


def test_a_block_takes_the_time_that_it_took_whole(graph, timings):
    costed = price(graph, profile=resolve("cpu"), measurements=timings)
    block = next(iter(timings.blocks.values()))
    for span in graph.spans[:1]:
        forward_s = sum(costed.costs[node].forward_s for node in span.nodes)
        assert forward_s == pytest.approx(block.forward_s)


def test_what_was_not_measured_is_priced_by_the_profile(graph, timings):
    half = timings.only(key for key in timings.nodes if "Embedding" in key)
    costed = price(graph, profile=resolve("cpu"), measurements=half)
    plain = price(graph, profile=resolve("cpu"))
    assert 0 < costed.measured_share < 1
    head = next(n for n in graph.graph.nodes if n.target == "head")
    assert costed.costs[head].forward_s == plain.costs[head].forward_s


def test_flops_and_bytes_stay_as_they_were(graph, timings):
    costed = price(graph, profile=resolve("cpu"), measurements=timings)
    plain = price(graph, profile=resolve("cpu"))
    assert costed.total.forward_flops == plain.total.forward_flops
    assert costed.total.saved_bytes == plain.total.saved_bytes


def test_the_model_is_left_alone(tmp_path):
    graph = recorded(layers=1)
    before = copy.deepcopy(graph.model.state_dict())
    flags = [module.training for module in graph.model.modules()]
    measure(graph, device="cpu", cache_folder=tmp_path)
    after = graph.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert flags == [module.training for module in graph.model.modules()]
    assert all(p.grad is None for p in graph.model.parameters())


def test_what_was_timed_is_not_timed_again(graph, timings, tmp_path, monkeypatch):
    first = measure(graph, device="cpu", cache_folder=tmp_path)
    stored = next(tmp_path.glob("*.json")).read_bytes()
    second = measure(graph, device="cpu", cache_folder=tmp_path)
    assert second == first
    assert next(tmp_path.glob("*.json")).read_bytes() == stored


class Refuses(nn.Module):
    """Runs on the recording's fakes, and on no random number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        order = torch.arange(x.shape[0]) * 7
        return self.linear(torch.nn.functional.embedding(order, x))


def test_what_cannot_be_timed_says_why(tmp_path):
    table = torch.randn(8, 32)
    model = nn.Sequential(Refuses())
    with pytest.raises(IndexError):
        model(table)
    graph = capture(model, table)
    found = measure(graph, device="cpu", cache_folder=tmp_path)
    assert any("IndexError" in reason for reason in found.failed.values())
    costed = price(graph, profile=resolve("cpu"), measurements=found)
    assert costed.measurements is not None
    assert "not timed: embedding (IndexError" in costed.measurements.summary
    assert costed.measured_share < 1


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(6, 6)

    def forward(self, x):
        return self.second(self.first(x).transpose(1, 2)[None].expand(3, -1, -1, -1))


def test_arguments_have_the_strides_that_views_give_them():
    graph = capture(Views(), torch.randn(4, 6, 8))
    node = next(n for n in graph.graph.nodes if n.target == "expand")
    found = Values(graph, torch.device("cpu")).value(node)
    assert found.shape == (3, 4, 8, 6)
    assert found.stride() == (0, 48, 1, 8)
    assert found.requires_grad
    assert found.is_leaf


def with_host(timings: Measurements, share: float) -> Measurements:
    """Let the host need ``share`` of the device's time for every block."""
    blocks = {
        key: replace(one, host_s=share * (one.forward_s + one.backward_s))
        for key, one in timings.blocks.items()
    }
    return replace(timings, blocks=blocks)


def test_a_host_that_runs_ahead_costs_nothing(graph, timings):
    priced = price(graph, profile=resolve("cpu"), measurements=timings)
    ahead = price(graph, profile=resolve("cpu"), measurements=with_host(timings, 0.9))
    assert one_stage(ahead) == one_stage(priced)
    assert not one_stage(ahead).host_bound


def one_stage(costed: CostedGraph) -> StageScore:
    """Return what one stage takes that has the whole model."""
    statement, _ = problem(costed, stages=1, micro_batches=4)
    count = len(statement.units)
    return score(statement, (0,) * count, (False,) * count).stages[0]


def test_a_host_that_falls_behind_sets_the_pace(graph, timings):
    behind = price(graph, profile=resolve("cpu"), measurements=with_host(timings, 2.0))
    for span in block_spans(graph):
        (signature,) = timings.blocks
        found_s = sum(behind.costs[n].host_s for n in span.nodes & behind.costs.keys())
        one = timings.blocks[signature]
        assert found_s == pytest.approx(2 * (one.forward_s + one.backward_s))
    outside = set(behind.costs).difference(*(s.nodes for s in block_spans(graph)))
    assert not any(behind.costs[node].host_s for node in outside)
    total = behind.total
    expected_s = max(total.host_s, total.forward_s + total.backward_s)
    assert one_stage(behind).time_s == pytest.approx(expected_s)
    assert one_stage(behind).host_bound


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def images(memory_format: torch.memory_format) -> ModelGraph:
    example = torch.randn(2, 3, 5, 7).to(memory_format=memory_format)
    return capture(Images(), example)


def test_channels_last_images_are_timed_as_such():
    graph = images(torch.channels_last)
    values = Values(graph, torch.device("cpu"))
    read = [node for node in graph.graph.nodes if node.users]
    assert len(read) == 4
    for node in read:
        made = values.value(node)
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert not made.is_contiguous()


def test_another_order_in_memory_is_other_work():
    def work(order: torch.memory_format) -> list[str]:
        graph = images(order)
        work = Work(graph, compiled=False)
        return [found for node in graph.graph.nodes if (found := work.of_node(node))]

    last = work(torch.channels_last)
    assert last == work(torch.channels_last)
    plain = work(torch.contiguous_format)
    assert len(last) == 3
    assert not set(last) & set(plain)
