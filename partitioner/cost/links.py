"""Where links of a cluster take the place of the profile's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.cluster import Cluster
    from partitioner.cost.profiles import DeviceProfile
    from partitioner.solve import Link

__all__ = ["far_boundaries", "over"]


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
