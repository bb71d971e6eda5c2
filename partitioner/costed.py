"""② CostedGraph: a ModelGraph with a price on every node, made by ``cost``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from partitioner.cost.given import GivenCost
    from partitioner.cost.measurements import Measurements
    from partitioner.cost.profiles import DeviceProfile
    from partitioner.graph import ModelGraph

__all__ = ["CostedGraph", "NodeCost", "Opening", "Unpriced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """What one node costs for one micro-batch. One multiply-add is two FLOPs."""

    forward_flops: int = 0
    backward_flops: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    host_s: float = 0.0
    """What the host needs to start both; it is known of repeated modules and the loss,
    else 0."""
    forward_bytes: int = 0
    """Bytes its kernels read and write in forward."""
    backward_bytes: int = 0
    """Bytes its kernels read and write in backward, gradient sums included."""
    output_bytes: int = 0
    saved_bytes: int = 0
    """What autograd keeps first because of this node, weights excluded."""
    transient_bytes: int = 0
    """What its backward holds for a moment: gradients of results, arguments and
    weights, before the last are added to those of earlier micro-batches."""
    parameter_bytes: int = 0
    """Parameters it reads, in the engine's type (a tied one counts at each reader)."""
    buffer_bytes: int = 0

    def __add__(self, other: NodeCost) -> NodeCost:
        """Return the field-wise sum; of what is held for a moment, the larger."""
        names = [field.name for field in fields(self)]
        total = {n: getattr(self, n) + getattr(other, n) for n in names}
        total["transient_bytes"] = max(self.transient_bytes, other.transient_bytes)
        return NodeCost(**total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """An operator whose FLOPs are not known: it is priced by its bytes alone."""

    operator: str
    count: int
    """How many calls were met, backward included."""
    module: str
    """Path of the module call that met it first ("" for the root)."""
    source: str
    """``file:line`` of the user's code that met it first, or ""."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A module called whole, and what a cut inside it costs on top."""

    module: str
    """``module path@call number``."""
    first: fx.Node
    last: fx.Node
    """Operations inside; the last depends on the first."""
    seconds: float
    """What forward and backward take longer when it runs node by node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedGraph:
    """A recorded model, the price of every node, and what could not be priced."""

    graph: ModelGraph
    costs: Mapping[fx.Node, NodeCost]
    unpriced: tuple[Unpriced, ...]
    profile: DeviceProfile
    openings: tuple[Opening, ...] = ()
    """Repeated modules that are called whole unless a cut goes through them."""
    measurements: Measurements | None = None
    """The timings that were used; None: the profile priced everything."""
    given: tuple[GivenCost, ...] = ()
    """Costs that the user gave in place of prices."""
    loss: NodeCost | None = None
    """What the loss costs that the engine computes: it is counted at the output."""
    measured_share: float = 0.0
    """Share of the seconds that was measured."""

    @property
    def total(self) -> NodeCost:
        """Sum over all nodes."""
        return reduce(add, self.costs.values(), NodeCost())

    def describe(self) -> str:
        """Return the totals, a line per node that costs time, and what is unpriced."""
        total = self.total
        lines = [
            f"{len(self.costs)} nodes on {self.profile.name}: "
            f"{total.forward_flops:,} + {total.backward_flops:,} FLOPs, "
            f"{total.forward_s:.6f} + {total.backward_s:.6f} s, "
            f"{total.saved_bytes:,} bytes saved for backward"
        ]
        for node, cost in self.costs.items():
            if cost.forward_s or cost.backward_s:
                lines.append(
                    f"  {_id(node):40} {cost.forward_flops:>16,} FLOPs "
                    f"{cost.forward_s * 1e6:>12.1f} + {cost.backward_s * 1e6:.1f} µs"
                )
        lines += [
            f"  unpriced: {item.operator} ×{item.count} at {item.module or 'root'} "
            f"({item.source}): {item.reason}"
            for item in self.unpriced
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for JSON."""
        return {
            "profile": self.profile.name,
            "fingerprint": self.graph.fingerprint,
            "total": _plain(self.total),
            "nodes": {_id(node): _plain(cost) for node, cost in self.costs.items()},
            "unpriced": [_plain(item) for item in self.unpriced],
        }


def _id(node: fx.Node) -> str:
    found: str = node.meta["info"].id
    return found


def _plain(record: NodeCost | Unpriced) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
