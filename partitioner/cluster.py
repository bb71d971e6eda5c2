"""Which node of a cluster each stage stands on, and what lies between the nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from partitioner.errors import OptionError
from partitioner.solve.replicas import Link

__all__ = ["LINKS", "Cluster", "parse_cluster", "parse_link"]

_DEVICE_S = 1e-5
"""As in the device profiles: what a message costs that stays in a node."""
_NETWORK_S = 3e-5
"""What a short message costs from node to node: NCCL's own test took 31 to 34 µs for up
to 8 KiB (https://github.com/NVIDIA/nccl-tests/issues/214)."""


def _device_link(gigabytes: float) -> Link:
    return Link(bytes_per_s=gigabytes * 1e9, latency_s=_DEVICE_S)


def _network(gigabits: float) -> Link:
    return Link(bytes_per_s=gigabits / 8 * 1e9, latency_s=_NETWORK_S)


# NVLink: half of the bidirectional figure of the V100's, A100's, H100's and HGX B200's
# datasheet (see ``cost/datasheets.py``). PCIe: 16 lanes of 8, 16 and 32 GT/s. Networks:
# the speeds of one port of an adapter, by the manual of NVIDIA's ConnectX-7
# (https://docs.nvidia.com/networking/display/ConnectX7VPI/Introduction).
LINKS: Mapping[str, Link] = {
    "nvlink2": _device_link(150),
    "nvlink3": _device_link(300),
    "nvlink4": _device_link(450),
    "nvlink5": _device_link(900),
    "pcie3": _device_link(16),
    "pcie4": _device_link(32),
    "pcie5": _device_link(64),
    "ib-100": _network(100),
    "ib-200": _network(200),
    "ib-400": _network(400),
    "ethernet-10": _network(10),
    "ethernet-25": _network(25),
    "ethernet-100": _network(100),
    "ethernet-200": _network(200),
    "ethernet-400": _network(400),
}
"""Links by name: the nominal rate of one device's, one direction."""

_GIGABITS = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(Gbit(/s)?|Gb/s)?\s*", re.IGNORECASE)
_BYTES = re.compile(r"GB(/s)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of equally many devices, filled by the ranks one after the other.

    DeepSpeed's default topology (``PipeDataParallelTopology``) numbers the ranks of one
    stage first: with R replicas, stage s of replica d is rank ``s * R + d``, on node
    ``(s * R + d) // devices_per_node``.

    Args:
        devices_per_node: Devices, and so ranks, of one node.
        between_nodes: What one device has for messages to another node.
        within_node: What it has for messages inside its node; None: the link of its
            profile.
        replicas: Pipelines that train side by side on shares of the batch.
    """

    devices_per_node: int
    between_nodes: Link
    within_node: Link | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            OptionError: A count is below 1, or a link is none (says which).
        """
        for name in ("devices_per_node", "replicas"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                message = f"cluster: {name} is {count!r}"
                raise OptionError(message, hint="give a whole number of at least 1")
        for name in ("between_nodes", "within_node"):
            link = getattr(self, name)
            if link is not None or name == "between_nodes":
                _check_link(name, link)

    def apart(self, first: int, second: int) -> bool:
        """Whether two ranks of a pipeline stand on different nodes in some replica.

        All replicas wait for the slowest at the end of a step, so one is enough.

        Args:
            first: Rank within a pipeline.
            second: Likewise.
        """
        return any(
            self._node(first, replica) != self._node(second, replica)
            for replica in range(self.replicas)
        )

    def nodes(self, ranks: int) -> int:
        """Return how many nodes all replicas of a pipeline of some ranks take."""
        return self._node(ranks - 1, self.replicas - 1) + 1

    def replicas_by_node(self, rank: int) -> tuple[int, ...]:
        """Return how many replicas of a rank stand on each node that has any."""
        nodes = (self._node(rank, replica) for replica in range(self.replicas))
        return tuple(Counter(nodes).values())

    def _node(self, rank: int, replica: int) -> int:
        return (rank * self.replicas + replica) // self.devices_per_node


def _check_link(name: str, link: Any) -> None:
    if not isinstance(link, Link):
        message = f"cluster: {name} is {link!r}"
        raise OptionError(message, hint="give a Link, or pass the cluster as a mapping")
    rates = isinstance(link.bytes_per_s, int | float) and link.bytes_per_s > 0
    if not rates or not isinstance(link.latency_s, int | float) or link.latency_s < 0:
        message = f"cluster: {name} is {link!r}"
        raise OptionError(message, hint="bytes_per_s is above 0, latency_s not below 0")


def parse_cluster(value: Any) -> Cluster | None:
    """Return a cluster from what a user wrote.

    Args:
        value: None; a `Cluster`; or a mapping of its fields, links as `parse_link`
            takes them: ``{"devices_per_node": 8, "between_nodes": "ib-400"}``.

    Raises:
        OptionError: A key is not known or missing, or a value is wrong.
    """
    if value is None or isinstance(value, Cluster):
        return value
    known = {"devices_per_node", "between_nodes", "within_node", "replicas"}
    needed = {"devices_per_node", "between_nodes"}
    if not isinstance(value, Mapping) or not needed <= set(value) <= known:
        message = f"cluster is {value!r}"
        hint = 'write {"devices_per_node": 8, "between_nodes": "ib-400"}'
        raise OptionError(message, hint=hint)
    fields = dict(value)
    for name in ("between_nodes", "within_node"):
        if fields.get(name) is not None:
            fields[name] = parse_link(fields[name])
    return Cluster(**fields)


def parse_link(value: Any) -> Link:
    """Return a link from what a user wrote.

    Args:
        value: A `Link` or a mapping of its fields; a name of `LINKS`; or the speed of a
            network in Gbit/s, as a number or like ``"400Gbit"``.

    Raises:
        OptionError: It is none of these.
    """
    if isinstance(value, Link):
        return value
    fields = set(asdict(Link(bytes_per_s=1.0)))
    if isinstance(value, Mapping) and "bytes_per_s" in value and fields >= set(value):
        return Link(**value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return _network(value)
    if isinstance(value, str):
        if value.lower() in LINKS:
            return LINKS[value.lower()]
        match = _GIGABITS.fullmatch(value)
        if match and float(match[1]) > 0 and not _BYTES.search(value):
            return _network(float(match[1]))
    hint = f"choose from {', '.join(LINKS)}, or give Gbit/s, like 400Gbit"
    raise OptionError(f"link {value!r} is not known", hint=hint)
