from __future__ import annotations

from partitioner.cluster import Cluster
from partitioner.cost import resolve
from partitioner.cost.links import replica_links
from partitioner.solve import Link

FAR = Link(bytes_per_s=50e9, latency_s=3e-5)
NEAR = Link(bytes_per_s=120e9, latency_s=1e-5)


def cluster(replicas, **fields):
    return Cluster(devices_per_node=8, between_nodes=FAR, replicas=replicas, **fields)


def test_on_one_node_replicas_have_the_device_s_link():
    profile = resolve("h100")
    own = Link(bytes_per_s=profile.link_bandwidth, latency_s=profile.link_latency_s)
    assert replica_links(profile, None, 3) == (own,) * 3
    assert replica_links(profile, cluster(8), 2) == (own,) * 2


def test_inside_a_node_the_link_that_was_named_counts():
    profile = resolve("h100")
    assert replica_links(profile, cluster(4, within_node=NEAR), 2) == (NEAR, NEAR)


def test_replicas_of_a_node_share_the_way_out_of_it():
    profile = resolve("h100")
    # Ranks 0 to 2 and 3 to 5 share a node; 6 to 8 have two here and one there.
    links = replica_links(profile, cluster(3, within_node=NEAR), 3)
    assert links == (NEAR, NEAR, FAR)
    both = replica_links(profile, cluster(4, within_node=NEAR), 4)
    assert both == (NEAR,) * 4
    # Two in each of two nodes: twice one link; eight in each: not above the near rate.
    pairs = Cluster(devices_per_node=2, between_nodes=FAR, within_node=NEAR, replicas=4)
    (link,) = replica_links(profile, pairs, 1)
    assert link == Link(bytes_per_s=100e9, latency_s=3e-5)
    (link,) = replica_links(profile, cluster(16, within_node=NEAR), 1)
    assert link == Link(bytes_per_s=120e9, latency_s=3e-5)
