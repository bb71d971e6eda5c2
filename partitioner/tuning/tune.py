"""Plan a model for every layout of some GPUs: recorded and priced once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partitioner.api import planned, priced
from partitioner.cluster import Cluster, parse_link
from partitioner.cost import Loss, PriceSource
from partitioner.cost.links import replica_links
from partitioner.cost.memory import optimizer_states
from partitioner.emit.ds_config import batch_size
from partitioner.errors import InfeasibleError, MemoryLimitError, OptionError
from partitioner.options import Options
from partitioner.solve import replica_sums_s
from partitioner.tuning.layouts import Layout, layouts
from partitioner.tuning.result import Row, Tuning

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from partitioner.capture.patterns import Pattern
    from partitioner.cost import Cost, DeviceProfile, Measurements
    from partitioner.costed import CostedGraph
    from partitioner.plan import Plan
    from partitioner.solve.problem import Checkpointing

__all__ = ["tune"]


def tune(
    model: nn.Module,
    *,
    gpus: int,
    batch: int,
    nodes: int = 1,
    between_nodes: Any = None,
    within_node: Any = None,
    example_inputs: Any = None,
    device: str | DeviceProfile | None = None,
    memory_limit: int | str | None = None,
    dtype: torch.dtype | str | None = None,
    optimizer: str = "adamw",
    checkpointing: Checkpointing = "auto",
    solver: str = "cbc",
    gap: float = 0.01,
    time_limit_s: float = 60,
    leaf: Sequence[Pattern] = (),
    keep_together: Sequence[Any] = (),
    no_cut_inside: Sequence[Pattern] = (),
    equal_stages: Sequence[Pattern] = (),
    costs: Mapping[Any, Cost] | None = None,
    measurements: Measurements | str | os.PathLike[str] | None = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    example_labels: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
    """Find the fastest way to train a model on some GPUs.

    Plans one GPU, data parallelism with ZeRO-1, and pipelines of every number of
    stages that divides the GPUs, as 1F1B and as DualPipeV, with as many replicas as
    GPUs are left for. The model is recorded and priced once.

    Args:
        model: As for :func:`~partitioner.partition`, and so is all that is not here.
        gpus: How many there are, on all nodes together.
        batch: Samples of one step, over all replicas. One micro-batch has as many as
            the first dimension of ``example_inputs``.
        nodes: Nodes they stand on, equally many on each.
        between_nodes: With several nodes, the link a GPU has from node to node, such
            as ``"ib-400"``; see :class:`~partitioner.Cluster`.
        within_node: The link inside a node; None: the device's.
        example_inputs: One micro-batch.
        device: What to price for.
        memory_limit: Memory of one GPU; None: the device's.
        dtype: Floating dtype of the engine.
        optimizer: Whose states take memory.
        checkpointing: What may be recomputed.
        solver: ``"cbc"`` or ``"highs"``.
        gap: Where to stop.
        time_limit_s: Seconds for the solver, for each layout.
        leaf: Modules that run whole.
        keep_together: Groups that share a stage.
        no_cut_inside: Modules that no cut may go through.
        equal_stages: Modules of which every stage runs equally many.
        costs: Costs in place of prices.
        measurements: What was timed.
        loss_fn: The loss of the last stage.
        example_labels: Labels of one micro-batch.
        progress: Called with a sentence before each layout.

    Returns:
        A row for each layout; ``best`` is the fastest that fits.

    Raises:
        OptionError: An argument is out of range.
        CostError: As for :func:`~partitioner.partition`.
        CaptureError: The forward cannot be recorded.
    """
    cluster = _cluster(gpus, nodes, between_nodes, within_node)
    options = Options.checked(
        stages=1,
        micro_batches=1,
        memory_limit=memory_limit,
        optimizer=optimizer,
        checkpointing=checkpointing,
        schedule="1f1b",
        solver=solver,
        gap=gap,
        time_limit_s=time_limit_s,
        cluster=cluster,
    )
    optimizer_states(options.optimizer)
    _check_count("batch", batch)
    source = PriceSource.of(device, measurements)
    limit = options.memory_limit_bytes or source.profile.memory_bytes
    costed = priced(
        model,
        source,
        Loss.of(loss_fn, example_labels),
        example_inputs=example_inputs,
        dtype=dtype,
        costs=costs,
        leaf=leaf,
        keep_together=keep_together,
        no_cut_inside=no_cut_inside,
        equal_stages=equal_stages,
    )
    return _Search(
        costed=costed,
        asked=replace(options, memory_limit_bytes=limit),
        batch=batch,
        tell=progress or (lambda _: None),
    ).run(gpus, nodes)


def _cluster(
    gpus: int, nodes: int, between_nodes: Any, within_node: Any
) -> Cluster | None:
    """Return where the GPUs stand; None: on one node, with the device's own link."""
    _check_count("gpus", gpus)
    _check_count("nodes", nodes)
    if gpus % nodes:
        message = f"{gpus} GPUs cannot stand on {nodes} nodes, equally many on each"
        raise OptionError(message, hint="gpus counts those of all nodes together")
    if nodes > 1 and between_nodes is None:
        message = f"{nodes} nodes, and no link between them"
        hint = "give between_nodes: what a GPU has from node to node, like ib-400"
        raise OptionError(message, hint=hint)
    if nodes == 1 and within_node is None:
        return None
    within = None if within_node is None else parse_link(within_node)
    return Cluster(
        devices_per_node=gpus // nodes,
        # On one node there is nothing between nodes: the field wants some link.
        between_nodes=parse_link(within_node if nodes == 1 else between_nodes),
        within_node=within,
    )


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        message = f"{name} is {value!r}"
        raise OptionError(message, hint="give a whole number of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What all layouts have in common."""

    costed: CostedGraph
    asked: Options
    batch: int
    tell: Callable[[str], None]

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return batch_size(self.costed.graph)

    def run(self, gpus: int, nodes: int) -> Tuning:
        """Plan every layout.

        Raises:
            OptionError: The batch is no whole number of micro-batches.
        """
        Layout().micro_batches(self.batch, self.samples)
        rows = tuple(self._row(layout) for layout in layouts(gpus))
        return Tuning(
            rows=rows,
            costed=self.costed,
            batch=self.batch,
            samples=self.samples,
            gpus=gpus,
            nodes=nodes,
            memory_limit_bytes=self.asked.memory_limit_bytes or 0,
            one_gpu_step_s=rows[0].step_s or self._unlimited_s(),
        )

    def _row(self, layout: Layout) -> Row:
        self.tell(f"planning {layout.name}")
        row = Row(layout=layout)
        try:
            options = layout.options(self.asked, self.batch, self.samples)
            row = replace(row, micro_batches=options.micro_batches)
            plan = planned(self.costed, options)
        except MemoryLimitError as error:
            return replace(
                row,
                memory_bytes=error.needed_bytes,
                reason=error.message,
                advice=error.hint,
            )
        except (InfeasibleError, OptionError) as error:
            return replace(row, reason=error.message, advice=error.hint)
        return replace(
            row,
            plan=plan,
            replica_sums_s=_replica_sums_s(plan),
            memory_bytes=max(rank.memory_bytes for rank in plan.score.ranks),
        )

    def _unlimited_s(self) -> float | None:
        """Return the step of one GPU that has memory enough, which recomputes less."""
        self.tell("planning 1 GPU without a memory limit")
        options = replace(self.asked, memory_limit_bytes=None)
        options = Layout().options(options, self.batch, self.samples)
        try:
            return planned(self.costed, options).simulation.step_s
        except InfeasibleError:
            return None


def _replica_sums_s(plan: Plan) -> float:
    options = plan.options
    links = replica_links(plan.costed.profile, options.cluster, plan.problem.ranks)
    return replica_sums_s(
        plan.problem,
        plan.assignment.stage_of,
        links,
        replicas=options.replicas,
        zero_stage=options.zero_stage,
    )
