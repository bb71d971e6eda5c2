from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from partitioner.capture import capture
from partitioner.cost import price, resolve
from partitioner.costed import NodeCost
from tests.cost import models
from tests.cost.handmade import GraphBuilder, meta


@pytest.fixture(scope="module")
def costed():
    model, x = models.build("mlp")
    return price(capture(model, example_inputs=x, dtype=None), profile=resolve("cpu"))


def test_costs_add_field_by_field():
    left = NodeCost(forward_flops=1, saved_bytes=2, forward_s=0.5)
    right = NodeCost(forward_flops=10, buffer_bytes=3, forward_s=0.25)

    assert left + right == NodeCost(
        forward_flops=11, saved_bytes=2, buffer_bytes=3, forward_s=0.75
    )


def test_the_total_is_the_sum_over_nodes(costed):
    flops = sum(cost.forward_flops for cost in costed.costs.values())

    assert costed.total.forward_flops == flops == 2 * 3 * (8 * 16 + 16 * 16 + 16 * 4)
    assert costed.total.parameter_bytes == 4 * sum(
        parameter.numel() for parameter in costed.graph.model.parameters()
    )


def test_it_serialises_to_json_by_stable_ids(costed):
    found = json.loads(json.dumps(costed.to_dict()))

    assert found["profile"] == "cpu"
    assert found["fingerprint"] == costed.graph.fingerprint
    assert found["total"]["forward_flops"] == costed.total.forward_flops
    assert found["nodes"]["0@0"]["forward_flops"] == 2 * 3 * 8 * 16


def test_it_describes_itself_and_names_what_is_not_priced():
    builder = GraphBuilder()
    x = builder.input("x", meta(4, 8))
    builder.call(torch.fft.fft, x, out=meta(4, 8, dtype=torch.complex64))

    text = price(builder.build(), profile=resolve("h100")).describe()

    assert "h100-80g" in text
    assert "unpriced: _fft_r2c ×1 at root (model.py:1)" in text


def test_the_record_loads_without_torch():
    code = "import sys, partitioner.costed; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
