"""Where links of a cluster take the place of the profile's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from partitioner.solve import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.cluster import Cluster
    from partitioner.cost.profiles import DeviceProfile

__all__ = ["far_boundaries", "over", "replica_links"]


def far_boundaries(cluster: Cluster | None, ranks: Sequence[int]) -> tuple[bool, ...]:
    """Return which boundaries between the ranks of the stages lie between nodes."""
    if cluster is None:
        return ()
    far = tuple(cluster.apart(first, second) for first, second in pairwise(ranks))
    return far if any(far) else ()


def over(profile: DeviceProfile, link: Link | None) -> DeviceProfile:
    """Return a profile with another link; None: its own."""
    if link is None:
        return profile
    bandwidth, latency_s = link.bytes_per_s, link.latency_s
    return replace(profile, link_bandwidth=bandwidth, link_latency_s=latency_s)


def replica_links(
    profile: DeviceProfile, cluster: Cluster | None, ranks: int
) -> tuple[Link, ...]:
    """Return over what the replicas of each rank of a pipeline sum their gradients.

    Where they stand on several nodes, a device in each node sends to the next one's,
    and all that a node has of them share the work: NCCL runs as many rings, each over
    another device's adapter. What leaves a node then passes at the rate of so many
    links, if that is not above the rate inside.

    Args:
        profile: The device, with its link inside a node.
        cluster: The nodes; None: all on one.
        ranks: Of one pipeline.

    Returns:
        One link for each rank.
    """
    near = over(profile, cluster.within_node if cluster else None)
    inside = Link(bytes_per_s=near.link_bandwidth, latency_s=near.link_latency_s)
    return tuple(_replica_link(inside, cluster, rank) for rank in range(ranks))


def _replica_link(inside: Link, cluster: Cluster | None, rank: int) -> Link:
    found = cluster.replicas_by_node(rank) if cluster else ()
    if cluster is None or len(found) == 1:
        return inside
    outside = cluster.between_nodes
    return Link(
        bytes_per_s=min(inside.bytes_per_s, min(found) * outside.bytes_per_s),
        latency_s=outside.latency_s,
    )
