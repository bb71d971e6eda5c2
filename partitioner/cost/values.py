"""What a cut between two units costs: the tensors that would cross it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.cost.links import over
from partitioner.cost.roofline import hop_s, message_s
from partitioner.cost.units import is_placed
from partitioner.graph import info
from partitioner.solve.parts import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from partitioner.cluster import Cluster
    from partitioner.cost.units import Units
    from partitioner.costed import CostedGraph

__all__ = ["values_of"]


def values_of(
    costed: CostedGraph, found: Units, cluster: Cluster | None
) -> tuple[Value, ...]:
    """Return what units make for others, with the time that it takes to cross.

    Args:
        costed: The priced graph.
        found: Its units.
        cluster: Links within and between nodes; None: the profile's.
    """
    return (*_values(costed, found, cluster), *_openings(costed, found))


def _values(
    costed: CostedGraph, found: Units, cluster: Cluster | None
) -> Iterable[Value]:
    near = far = costed.profile
    if cluster:
        near = over(near, cluster.within_node)
        far = over(far, cluster.between_nodes)
    for node, producer in found.unit_of.items():
        consumers = {
            found.unit_of[user]
            for user in node.users
            if is_placed(user) and not _given_to_last(node, user)
        } - {producer}
        if consumers:
            parts = info(node).outputs
            gradients = [part.nbytes for part in parts if part.requires_grad]
            nbytes = sum(part.nbytes for part in parts)
            both_s = hop_s(near, nbytes, gradients)
            far_s = hop_s(far, nbytes, gradients)
            yield Value(
                producer=producer,
                consumers=tuple(sorted(consumers)),
                hop_s=both_s,
                wire_bytes=nbytes,
                gradient_hop_s=both_s - message_s(near, nbytes),
                far_hop_s=far_s if cluster else None,
                far_gradient_hop_s=far_s - message_s(far, nbytes) if cluster else None,
            )


def _openings(costed: CostedGraph, found: Units) -> Iterable[Value]:
    """State what a cut inside a module costs: a value of no bytes from end to end.

    Both stages next to a boundary pay for what crosses it: half of the price each.
    """
    for opening in costed.openings:
        first, last = found.unit_of[opening.first], found.unit_of[opening.last]
        if first != last and opening.seconds:
            yield Value(
                producer=first,
                consumers=(last,),
                hop_s=opening.seconds / 2,
                wire_bytes=0,
            )


def _given_to_last(node: fx.Node, user: fx.Node) -> bool:
    """Whether DeepSpeed hands the value to the last stage: a label in the loss."""
    return info(node).kind == "input" and info(user).kind == "late"
