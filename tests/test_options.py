from __future__ import annotations

from typing import Any

import pytest

from partitioner.errors import OptionError
from partitioner.options import Options, parse_bytes

NODES = {"devices_per_node": 8, "between_nodes": "ib-400"}
GOOD: dict[str, Any] = {
    "stages": 4,
    "micro_batches": None,
    "memory_limit": None,
    "optimizer": "adamw",
    "checkpointing": "auto",
    "schedule": "1f1b",
    "solver": "cbc",
    "gap": 0.01,
    "time_limit_s": 60,
}


def test_micro_batches_default_to_four_for_each_stage():
    assert Options.checked(**GOOD).micro_batches == 16
    assert Options.checked(**{**GOOD, "micro_batches": 3}).micro_batches == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stages", 0),
        ("stages", -2),
        ("stages", 2.0),
        ("stages", True),
        ("stages", "4"),
        ("micro_batches", 0),
        ("memory_limit", "a lot"),
        ("memory_limit", 0),
        ("memory_limit", -5),
        ("optimizer", 3),
        ("checkpointing", "some"),
        ("schedule", "gpipe"),
        ("solver", "gurobi"),
        ("gap", -0.1),
        ("gap", 1.5),
        ("gap", "1%"),
        ("time_limit_s", 0),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(OptionError) as caught:
        Options.checked(**{**GOOD, name: value})

    said = name.replace("memory_limit", "memory limit")
    assert said in caught.value.message
    assert repr(value) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("24 gib", 24 * 2**30),
        ("800M", 800 * 10**6),
        ("1.5KiB", 1536),
        ("123", 123),
        ("7b", 7),
        (123, 123),
        (None, None),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"zero_stage": 2}, "zero_stage is 2: DeepSpeed's pipeline engine has"),
        ({"zero_stage": 3}, "zero_stage is 3: DeepSpeed's pipeline engine has"),
        ({"zero_stage": "1"}, "zero_stage is '1'"),
        ({"offload_optimizer": True}, "offload_optimizer needs ZeRO"),
        ({"cuda_graphs": 1}, "cuda_graphs is 1"),
        ({"offload_optimizer": "cpu", "zero_stage": 1}, "offload_optimizer is 'cpu'"),
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": 3, "cluster": {**NODES, "replicas": 2}}, "the cluster has 2"),
    ],
)
def test_what_a_pipeline_cannot_do_with_its_optimizer_is_refused(given, words):
    with pytest.raises(OptionError) as caught:
        Options.checked(**{**GOOD, **given})
    assert words in caught.value.message
    assert caught.value.hint


def test_replicas_are_the_cluster_s_and_the_other_way_round():
    def found(**given):
        return Options.checked(**{**GOOD, **given})

    assert found().replicas == 1
    assert found(replicas=3).cluster is None
    assert found(cluster={**NODES, "replicas": 2}).replicas == 2
    assert found(cluster=NODES, replicas=2).cluster.replicas == 2
