"""State the planning problem: CostedGraph → Problem, in plain numbers."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from partitioner.cost.blocks import unit_blocks
from partitioner.cost.constraints import constraints
from partitioner.cost.inflight import in_flight
from partitioner.cost.links import far_boundaries
from partitioner.cost.memory import Engine
from partitioner.cost.moments import moments
from partitioner.cost.passing import passing_bytes, read_alone
from partitioner.cost.units import Units, is_placed, units
from partitioner.cost.values import values_of
from partitioner.cost.weights import Weight, read_weights
from partitioner.costed import NodeCost
from partitioner.errors import TooManyStagesError
from partitioner.graph import info
from partitioner.solve.parts import Tie, Unit
from partitioner.solve.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from partitioner.cluster import Cluster
    from partitioner.cost.moments import Moments
    from partitioner.costed import CostedGraph
    from partitioner.options import Options
    from partitioner.solve.parts import Device
    from partitioner.solve.problem import Checkpointing, Objective, Schedule

__all__ = ["problem", "problem_for"]

_FIRST, _LAST = 0, -1

_Owners = dict[tuple[int, ...], list[Weight]]
"""Weights by the units that read them."""


def problem(
    costed: CostedGraph,
    *,
    stages: int,
    micro_batches: int,
    memory_limit_bytes: int | None = None,
    checkpointing: Checkpointing = "auto",
    optimizer: str = "adamw",
    objective: Objective = "step",
    schedule: Schedule = "1f1b",
    devices: tuple[Device, ...] = (),
    cluster: Cluster | None = None,
    replicas: int = 1,
    zero_stage: int = 0,
    offload_optimizer: bool = False,
    cuda_graphs: bool = False,
) -> tuple[Problem, Units]:
    """State where the units of a priced graph may go and what each choice costs.

    Args:
        costed: The priced graph.
        stages: Number of pipeline stages (of ranks with two, if ``schedule`` is
            "dualpipev").
        micro_batches: Micro-batches of one step.
        memory_limit_bytes: What one stage may hold; None: no limit.
        checkpointing: Whether blocks may, must or must not be recomputed.
        optimizer: Key of ``memory.OPTIMIZER_STATES``.
        objective: What to minimise: "step" or "bottleneck".
        schedule: "1f1b", "eager-1f1b" or "dualpipev".
        devices: What each rank runs on; empty: all alike.
        cluster: Which nodes the ranks stand on; None: all on one.
        replicas: Pipelines side by side.
        zero_stage: 0 or 1.
        offload_optimizer: Whether the host holds the optimizer's states.
        cuda_graphs: Whether launches are replayed, which takes the host no time.

    Returns:
        The problem, and the nodes behind its unit numbers.

    Raises:
        OptionError: The optimizer is not known, or there are too few micro-batches.
        TooManyStagesError: Something must be on the first and on the last stage.
    """
    found = units(costed)
    ranks = [*range(stages)]
    if schedule == "dualpipev":
        ranks += reversed(ranks)
        stages *= 2
    owners = _owners(costed, found)
    blocks, names = unit_blocks(costed.graph, found)
    engine = Engine(
        dtype=costed.graph.dtype,
        optimizer=optimizer,
        zero_stage=zero_stage,
        replicas=replicas,
        offload_optimizer=offload_optimizer,
    )
    gradients = [
        engine.passing(owners.get((index,), ())) for index in range(len(found.nodes))
    ]
    held = moments(costed, found, blocks, gradients)
    values = values_of(costed, found, cluster)
    reads = read_alone(values, blocks) if checkpointing == "all" else None
    saved = [sum(costed.costs[n].saved_bytes for n in part) for part in found.nodes]
    return Problem(
        units=tuple(
            _units(
                costed,
                found,
                owners,
                blocks,
                held,
                passing=passing_bytes(gradients, saved, blocks, reads),
                stages=stages,
                engine=engine,
                host_counts=not cuda_graphs,
            )
        ),
        values=values,
        stages=stages,
        micro_batches=micro_batches,
        in_flight=in_flight(stages, micro_batches, schedule),
        cuda_graphs=cuda_graphs,
        memory_limit_bytes=memory_limit_bytes,
        reserved_bytes=held.reserved_bytes,
        engine_bytes=engine.buffer_bytes(chain.from_iterable(owners.values())),
        order_edges=_order_edges(costed, found),
        ties=tuple(_ties(owners, engine)),
        checkpointing=checkpointing,
        block_names=names,
        objective=objective,
        schedule=schedule,
        devices=devices,
        far=far_boundaries(cluster, ranks),
        constraints=tuple(constraints(costed.graph, found)),
    ), found


def problem_for(costed: CostedGraph, options: Options) -> tuple[Problem, Units]:
    """State the planning problem that checked options ask for.

    Args:
        costed: The priced graph.
        options: Stages, micro-batches, memory limit, checkpointing and optimizer.

    Returns:
        The problem, and the nodes behind its unit numbers.

    Raises:
        OptionError: The optimizer is not known.
        TooManyStagesError: Something must be on the first and on the last stage.
    """
    return problem(
        costed,
        stages=options.stages,
        micro_batches=options.micro_batches,
        memory_limit_bytes=options.memory_limit_bytes,
        checkpointing=options.checkpointing,
        optimizer=options.optimizer,
        objective=options.objective,
        schedule=options.schedule,
        devices=options.devices,
        cluster=options.cluster,
        replicas=options.replicas,
        zero_stage=options.zero_stage,
        offload_optimizer=options.offload_optimizer,
        cuda_graphs=options.cuda_graphs,
    )


def _owners(costed: CostedGraph, found: Units) -> _Owners:
    readers: dict[Weight, set[int]] = defaultdict(set)
    for node, weights in read_weights(costed.graph).items():
        if is_placed(node):
            for weight in weights:
                readers[weight].add(found.unit_of[node])
    owners: _Owners = defaultdict(list)
    for weight, users in readers.items():
        owners[tuple(sorted(users))].append(weight)
    return owners


def _ties(owners: _Owners, engine: Engine) -> Iterable[Tie]:
    """Yield what several units read."""
    for readers, weights in owners.items():
        if len(readers) > 1:
            yield Tie(
                units=readers,
                static_bytes=engine.held(weights) + engine.passing(weights),
                step_bytes=engine.step(weights),
                gradient_bytes=_gradient_bytes(weights),
            )


def _units(
    costed: CostedGraph,
    found: Units,
    owners: _Owners,
    blocks: Sequence[int],
    held: Moments,
    *,
    passing: Sequence[int],
    stages: int,
    engine: Engine,
    host_counts: bool,
) -> Iterable[Unit]:
    # A parameter counts where it is used first.
    trains, freezes = (
        {
            readers[0]
            for readers, weights in owners.items()
            if any(
                weight.is_parameter and weight.trainable is flag for weight in weights
            )
        }
        for flag in (True, False)
    )
    for index, nodes in enumerate(found.nodes):
        cost = sum((costed.costs[node] for node in nodes), NodeCost())
        weights = owners.get((index,), ())
        yield Unit(
            name=info(nodes[0]).id,
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            host_s=cost.host_s if host_counts else 0.0,
            saved_bytes=cost.saved_bytes,
            static_bytes=engine.held(weights),
            step_bytes=engine.step(weights),
            transient_bytes=held.transient_bytes[index],
            beyond_bytes=held.beyond_bytes[index],
            tail=held.tail[index],
            passing_bytes=passing[index],
            trainable=index in trains,
            frozen=index in freezes,
            block=blocks[index],
            pinned_stage=_pin(nodes, stages),
            gradient_bytes=_gradient_bytes(weights),
        )


def _gradient_bytes(weights: Iterable[Weight]) -> int:
    return sum(w.numel * w.itemsize for w in weights if w.trainable)


def _pin(nodes: Sequence[fx.Node], stages: int) -> int | None:
    """Inputs arrive at the first stage; labels and the outputs are on the last."""
    kinds = {info(node).kind for node in nodes}
    first = "input" in kinds
    last = bool({"late", "output"} & kinds)
    if first and last and stages > 1:
        raise TooManyStagesError(
            f"{info(nodes[0]).id}: an input and the output must stay together, so "
            f"nothing can be cut between them; {stages} stages were asked for",
            largest=1,
            hint="look for a write in place that reaches from an input to the output",
        )
    return _FIRST if first else _LAST if last else None


def _order_edges(costed: CostedGraph, found: Units) -> tuple[tuple[int, int], ...]:
    unit_of: Mapping[fx.Node, int] = found.unit_of
    pairs = (
        (unit_of[before], unit_of[after])
        for before, after in costed.graph.order_edges
        if before in unit_of and after in unit_of
    )
    return tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
