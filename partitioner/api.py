"""The compiler on one page: capture → price → solve → Plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partitioner.capture import capture
from partitioner.cost import (
    Cost,
    DeviceProfile,
    Loss,
    Measurements,
    PriceSource,
    find_given,
    loss_graph,
    problem_for,
    with_given,
    with_loss,
)
from partitioner.cost.memory import optimizer_states
from partitioner.dtypes import as_dtype
from partitioner.errors import InfeasibleError
from partitioner.options import Options
from partitioner.plan import Plan
from partitioner.report import plan_text
from partitioner.solve import solve

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from partitioner.capture.patterns import Pattern
    from partitioner.cluster import Cluster
    from partitioner.costed import CostedGraph
    from partitioner.solve.problem import Checkpointing

__all__ = ["inspect_model", "partition", "planned", "priced"]

WORTH_IT = {"cpu": 0.005, "gpu": 0.06}
"""Share of a step that running ahead must save, by kind of device. On a GPU the receive
that waits is a kernel too: with one posted all the time, passes took 4 to 7 % longer
(two H200, see docs/schedules.md), which the simulator does not know."""


def partition(
    model: nn.Module,
    stages: int,
    *,
    example_inputs: Any = None,
    micro_batches: int | None = None,
    device: str | DeviceProfile | None = None,
    memory_limit: int | str | None = None,
    dtype: torch.dtype | str | None = None,
    optimizer: str = "adamw",
    checkpointing: Checkpointing = "auto",
    schedule: str = "1f1b",
    solver: str = "cbc",
    gap: float = 0.01,
    time_limit_s: float = 60,
    leaf: Sequence[Pattern] = (),
    keep_together: Sequence[Any] = (),
    no_cut_inside: Sequence[Pattern] = (),
    costs: Mapping[Any, Cost] | None = None,
    pin: Mapping[Pattern, int] | None = None,
    equal_stages: Sequence[Pattern] = (),
    objective: str = "step",
    devices: Sequence[Mapping[str, Any]] = (),
    cluster: Cluster | Mapping[str, Any] | None = None,
    replicas: int | None = None,
    zero_stage: int = 0,
    offload_optimizer: bool = False,
    cuda_graphs: bool = False,
    measurements: Measurements | str | os.PathLike[str] | None = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    example_labels: Any = None,
) -> Plan:
    """Cut a model into balanced pipeline stages.

    Needs no process group and no GPU, and leaves the model as it was.

    Args:
        model: Any module, unchanged; one on ``meta`` allocates nothing.
        stages: Number of pipeline stages.
        example_inputs: One micro-batch: a tensor, a tuple (positional) or a dict
            (keywords); None if the model carries ``example_input_array`` or
            ``dummy_inputs``.
        micro_batches: Micro-batches of one step; None: four times the stages.
        device: What to price for: a profile's name (``"h100"``, ``"a100-80g"``), its
            file (``"mine.toml"``) or a ``DeviceProfile``; ``"measure"``: time the
            model's parts on the accelerator present, else the CPU; None: that
            device's profile, or the one of ``measurements``.
        memory_limit: Memory of one stage in bytes or like ``"24GiB"``; None: the
            device's.
        dtype: Floating dtype the engine will train in; None: the model's.
        optimizer: Whose states take memory: ``"adamw"``, ``"adam"``, ``"sgd"``,
            ``"sgd-momentum"``.
        checkpointing: ``"none"``; ``"auto"``: recompute only what does not fit
            otherwise; ``"all"``: every repeated layer.
        schedule: ``"1f1b"``; ``"eager-1f1b"``: 1F1B with up to twice as many
            micro-batches in flight and messages that nobody waits for;
            ``"dualpipev"``: ``stages`` ranks with two stages each, r and
            2 × ranks - 1 - r, which are balanced as pairs; ``"auto"``: ``"1f1b"``, or
            ``"eager-1f1b"`` where it fits and its simulated step is shorter by half a
            percent, on GPUs by six.
        solver: ``"cbc"`` (bundled) or ``"highs"`` (extra).
        gap: Share of the step time by which the plan may miss the optimum.
        time_limit_s: Seconds for the solver; the best plan so far is used then.
        leaf: Modules that run whole, on one stage, and are not recorded through:
            paths, globs (``"model.layers.*"``) or module classes.
        keep_together: Groups of such patterns; each group runs on one stage.
        no_cut_inside: Modules that no cut may go through.
        costs: What one call of a module (path, glob or class) or an operator (its
            name in ``inspect --by operator``) costs, in place of what is priced.
        pin: Stage that modules run on, by pattern: ``{"lm_head": -1}``.
        equal_stages: Modules of which every stage runs equally many, each whole.
        objective: ``"step"``: the shortest step; ``"bottleneck"``: the fastest slowest
            stage.
        devices: Where stages run on unequal devices, one mapping for each: ``speed``
            relative to ``device``, and ``memory_limit``.
        cluster: Where stages stand on several nodes, a ``Cluster`` or its fields:
            ``{"devices_per_node": 8, "between_nodes": "ib-400"}``. What crosses from
            node to node then takes that link's time.
        replicas: Pipelines that train side by side on shares of the batch, among which
            states of the optimizer may be shared; None: the cluster's, or one.
        zero_stage: DeepSpeed's ZeRO: 0, or 1, which shares master copies and states
            of the optimizer among the replicas.
        offload_optimizer: Keep both in the host's memory (with ``zero_stage=1``).
        cuda_graphs: Stages are replayed as CUDA graphs, so that the host's time does
            not count, and memory is kept for it; :meth:`Plan.initialize` does so.
        measurements: What ``partitioner measure`` timed on the device, or its file.
        loss_fn: The loss that ``plan.initialize`` will be given, to price it on the
            last stage: over a large vocabulary it takes as long as some layers. None:
            the model computes its own, or none is priced.
        example_labels: Labels of one micro-batch, for ``loss_fn``.

    Returns:
        The plan, which knows its bound and its gap.

    Raises:
        OptionError: An argument is out of range.
        CostError: The measurements cannot be read, or not be taken, or the loss cannot
            be recorded.
        CaptureError: The forward cannot be recorded (its subclasses say why).
        InfeasibleError: No plan obeys the limits.
    """
    options = Options.checked(
        stages=stages,
        micro_batches=micro_batches,
        memory_limit=memory_limit,
        optimizer=optimizer,
        checkpointing=checkpointing,
        schedule="1f1b" if schedule == "auto" else schedule,
        solver=solver,
        gap=gap,
        time_limit_s=time_limit_s,
        objective=objective,
        devices=devices,
        cluster=cluster,
        replicas=replicas,
        zero_stage=zero_stage,
        offload_optimizer=offload_optimizer,
        cuda_graphs=cuda_graphs,
    )
    optimizer_states(options.optimizer)
    source = PriceSource.of(device, measurements)
    loss = Loss.of(loss_fn, example_labels)
    if options.memory_limit_bytes is None:
        options = replace(options, memory_limit_bytes=source.profile.memory_bytes)
    costed = priced(
        model,
        source,
        loss,
        example_inputs=example_inputs,
        dtype=dtype,
        costs=costs,
        leaf=leaf,
        keep_together=keep_together,
        no_cut_inside=no_cut_inside,
        pin=pin,
        equal_stages=equal_stages,
    )
    plan = planned(costed, options)
    return _the_faster(plan) if schedule == "auto" else plan


def priced(
    model: nn.Module,
    source: PriceSource,
    loss: Loss | None,
    *,
    example_inputs: Any,
    dtype: torch.dtype | str | None,
    costs: Mapping[Any, Cost] | None,
    **wishes: Any,
) -> CostedGraph:
    """Record a model and price it, with its loss and the costs that are given.

    Args:
        model: As for :func:`partition`.
        source: Where prices come from.
        loss: What the engine will compute on the output.
        example_inputs: As for :func:`partition`.
        dtype: As for :func:`partition`.
        costs: As for :func:`partition`.
        **wishes: What is to stay whole or together, as for :func:`partition`.

    Raises:
        PartitionerError: As for :func:`partition`.
    """
    graph = capture(model, example_inputs, dtype=as_dtype(dtype), **wishes)
    given = find_given(graph, costs or {})
    costed = source.price(graph)
    if loss:
        costed = with_loss(costed, source.price(loss_graph(graph, loss)))
    return with_given(costed, given)


def planned(costed: CostedGraph, options: Options) -> Plan:
    """Find the best plan for a priced model.

    Args:
        costed: The model.
        options: What is asked for.

    Raises:
        OptionError: The options contradict the model.
        InfeasibleError: No plan obeys the limits.
    """
    statement, units = problem_for(costed, options)
    assignment = solve(
        statement,
        solver=options.solver,
        gap=options.gap,
        time_limit_s=options.time_limit_s,
    )
    return Plan(
        costed=costed,
        problem=statement,
        units=units,
        assignment=assignment,
        options=options,
    )


def _the_faster(plan: Plan) -> Plan:
    """Return a plan for 1F1B, or for eager 1F1B if its simulated step is worth it."""
    options = replace(plan.options, schedule="eager-1f1b")
    try:
        ahead = planned(plan.costed, options)
    except InfeasibleError:
        return plan  # more micro-batches in flight do not fit
    limit_s = (1 - WORTH_IT[plan.costed.profile.kind]) * plan.simulation.step_s
    return ahead if ahead.simulation.step_s < limit_s else plan


def inspect_model(model: nn.Module, stages: int, **options: Any) -> str:
    """Return the report of a plan as text, without keeping the plan.

    Args:
        model: As for :func:`partition`.
        stages: As for :func:`partition`.
        **options: As for :func:`partition`.

    Raises:
        PartitionerError: As for :func:`partition`.
    """
    return plan_text(partition(model, stages, **options).to_dict())
