from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from partitioner import Cluster, Link, OptionError, Plan, partition
from partitioner.cluster import LINKS, parse_cluster, parse_link
from tests.solve.settings import quick

EIGHT: dict[str, Any] = {"devices_per_node": 8, "between_nodes": "ib-400"}


# ---------------------------------------------------------------- where stages stand


@quick
@given(stages=st.integers(1, 9), replicas=st.integers(1, 5), each=st.integers(1, 9))
def test_ranks_stand_where_deepspeed_s_topology_puts_them(stages, replicas, each):
    topology = PipeDataParallelTopology(num_pp=stages, num_dp=replicas)
    node = [
        [topology.get_rank(pipe=s, data=d) // each for d in range(replicas)]
        for s in range(stages)
    ]
    cluster = Cluster(
        devices_per_node=each, between_nodes=LINKS["ib-400"], replicas=replicas
    )
    for first, second in pairwise(range(stages)):
        assert cluster.apart(first, second) == (node[first] != node[second])
    assert cluster.nodes(stages) == len({place for row in node for place in row})


# ---------------------------------------------------------------- what users write


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("ib-400", 50e9),
        ("IB-400", 50e9),
        ("400", 50e9),
        (400, 50e9),
        ("400Gbit", 50e9),
        ("2.5 gbit/s", 2.5e9 / 8),
        ("25Gb/s", 25e9 / 8),
        ("nvlink4", 450e9),
        ({"bytes_per_s": 7.0}, 7.0),
        (Link(bytes_per_s=9.0), 9.0),
    ],
)
def test_links_are_read(text, bytes_per_s):
    assert parse_link(text).bytes_per_s == bytes_per_s


@pytest.mark.parametrize("value", ["50GB", "fast", "", 0, -1, "0", True, None, {}, []])
def test_what_is_no_link_is_named(value):
    with pytest.raises(OptionError, match="is not known") as caught:
        parse_link(value)
    assert "ib-400" in caught.value.hint


def test_a_cluster_is_read_from_its_fields():
    assert parse_cluster(None) is None
    found = parse_cluster({**EIGHT, "within_node": "pcie4", "replicas": 2})
    assert found == Cluster(
        devices_per_node=8,
        between_nodes=LINKS["ib-400"],
        within_node=LINKS["pcie4"],
        replicas=2,
    )
    assert parse_cluster(found) is found


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (8, "cluster is 8"),
        ({"devices_per_node": 8}, "cluster is"),
        ({**EIGHT, "colour": 1}, "colour"),
        ({**EIGHT, "devices_per_node": 0}, "devices_per_node is 0"),
        ({**EIGHT, "devices_per_node": "8"}, "devices_per_node is '8'"),
        ({**EIGHT, "replicas": True}, "replicas is True"),
        ({**EIGHT, "between_nodes": None}, "between_nodes is None"),
        ({**EIGHT, "between_nodes": "fast"}, "'fast'"),
        ({**EIGHT, "between_nodes": {"bytes_per_s": 0}}, "between_nodes"),
        ({**EIGHT, "within_node": {"bytes_per_s": 1, "latency_s": -1}}, "within_node"),
        ({**EIGHT, "within_node": {"bytes_per_s": "1"}}, "within_node"),
    ],
)
def test_what_is_no_cluster_is_named(value, named):
    with pytest.raises(OptionError) as caught:
        parse_cluster(value)
    assert named in caught.value.message
    assert caught.value.hint


# ---------------------------------------------------------------- plans


WIDE, NARROW, EXAMPLES = 256, 8, 512


def build() -> nn.Module:
    """Eight layers of which only the third hands on little."""
    sizes = [WIDE, WIDE, WIDE, NARROW, *[WIDE] * 5]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def planned(**options: Any) -> Plan:
    return partition(
        build(), 4, example_inputs=torch.zeros(EXAMPLES, WIDE), device="h100", **options
    )


SLOW = {"devices_per_node": 2, "between_nodes": "ethernet-10"}


def test_the_cheap_cut_lies_between_the_nodes():
    plan = planned(cluster=SLOW)
    sent = [stage.sent_bytes for stage in plan.stages[:-1]]
    wide, narrow = 4 * EXAMPLES * WIDE, 4 * EXAMPLES * NARROW
    assert sent == [wide, narrow, wide]
    assert planned().stages[1].sent_bytes == wide
    assert plan.gap <= 0.01


def test_far_boundaries_are_priced_once_reported_and_simulated():
    plan = planned(cluster=SLOW)
    link, near = LINKS["ethernet-10"], plan.costed.profile
    nbytes = plan.stages[1].sent_bytes
    far_s = link.latency_s + nbytes / link.bytes_per_s
    near_s = near.link_latency_s + plan.stages[0].sent_bytes / near.link_bandwidth
    spent = [stage.score.communication_s for stage in plan.stages]
    assert spent[0] == pytest.approx(2 * near_s)
    assert spent[1] == spent[2] == pytest.approx(2 * near_s + 2 * far_s)

    messages = {
        (event.kind, event.chunk): event.end_s - event.start_s
        for event in plan.simulation.events
    }
    for message in (("activation", 1), ("gradient", 2)):
        assert messages[message] == pytest.approx(far_s)
    assert messages["activation", 0] == pytest.approx(near_s)

    document = plan.to_dict()
    assert document["cluster"] == {"nodes": 2, "far_boundaries": [1]}
    assert [b["between_nodes"] for b in document["boundaries"]] == [False, True, False]
    said = " ".join(str(plan).split())
    assert "2 nodes (2 devices each), 1.16 GiB/s and 30.0 µs between them" in said
    assert "crossed after stage 1" in said


def test_one_node_and_equal_links_change_nothing():
    plain = planned()
    one = planned(cluster={**SLOW, "devices_per_node": 4})
    assert one.problem.far == ()
    assert "no boundary lies between nodes" in str(one)
    profile = plain.costed.profile
    same = Link(bytes_per_s=profile.link_bandwidth, latency_s=profile.link_latency_s)
    equal = planned(cluster=Cluster(devices_per_node=1, between_nodes=same))
    assert equal.problem.far == (True,) * 3
    for plan in (one, equal):
        assert plan.assignment.stage_of == plain.assignment.stage_of
        assert plan.objective_s == plain.objective_s
        assert plan.bound_s == plain.bound_s
        assert plan.simulation.step_s == plain.simulation.step_s


def test_the_link_within_nodes_can_be_another_than_the_device_s():
    plan = planned(cluster={**SLOW, "within_node": "pcie3"})
    link = LINKS["pcie3"]
    near_s = link.latency_s + plan.stages[0].sent_bytes / link.bytes_per_s
    assert plan.stages[0].score.communication_s == pytest.approx(2 * near_s)


def test_replicas_spread_the_stages_over_more_nodes():
    assert planned(cluster={**SLOW, "replicas": 2}).problem.far == (True,) * 3


def test_ranks_of_two_stages_have_their_own_boundaries():
    plan = partition(
        build(),
        2,
        example_inputs=torch.zeros(EXAMPLES, WIDE),
        device="h100",
        schedule="dualpipev",
        checkpointing="none",
        cluster={**SLOW, "devices_per_node": 1},
    )
    assert plan.problem.far == (True, False, True)


def test_a_plan_file_keeps_the_cluster(tmp_path):
    plan = planned(cluster={**SLOW, "within_node": "pcie4"})
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", build())
    assert loaded.options.cluster == plan.options.cluster
    assert loaded.problem == plan.problem
    assert loaded.to_dict() == plan.to_dict()
