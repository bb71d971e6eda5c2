"""What was tried, what is best, and the files to start it with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.errors import InfeasibleError, PartitionerError
from partitioner.files import write_whole
from partitioner.report.tuning import tuning_text

if TYPE_CHECKING:
    from partitioner.costed import CostedGraph
    from partitioner.plan import Plan
    from partitioner.tuning.layouts import Layout

__all__ = ["Measured", "Row", "Tuning"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a layout took when it ran here."""

    step_s: float | None = None
    """A whole step, with the optimizer's; None: ``reason`` says why."""
    memory_bytes: int | None = None
    """The most that a GPU held; None on a CPU."""
    reason: str = ""
    """Why there is no step: it failed, ran out of memory, or was not run."""
    failed: bool = False
    """Whether it was run, and there is no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout, and what came of it."""

    layout: Layout
    micro_batches: int | None = None
    """Of each replica, in one step; None: the batch cannot be shared out."""
    plan: Plan | None = None
    """None if there is no plan that fits: ``reason`` says why."""
    replica_sums_s: float = 0.0
    """What a step takes longer for sums of gradients over the replicas."""
    memory_bytes: int | None = None
    """Peak of the fullest GPU; without a plan, of the smallest that was found."""
    reason: str = ""
    """Why it is out."""
    advice: str = ""
    """What would be in."""
    measured: Measured | None = None
    """None: it was not to be measured."""

    @property
    def step_s(self) -> float | None:
        """Simulated step with those sums; None without a plan."""
        if self.plan is None:
            return None
        return self.plan.simulation.step_s + self.replica_sums_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All layouts of a number of GPUs."""

    rows: tuple[Row, ...]
    """One GPU, data parallel, then pipelines with ever more stages."""
    costed: CostedGraph
    batch: int
    """Samples of one step, over all replicas."""
    samples: int
    """Samples of one micro-batch."""
    gpus: int
    nodes: int
    memory_limit_bytes: int
    one_gpu_step_s: float | None
    """Step of one GPU, with memory enough; None: it cannot be planned."""
    measured_on: str | None = None
    """What layouts were measured on; None: none was."""

    @property
    def best(self) -> Row | None:
        """The fastest, the first of equals; None: nothing fits.

        Where some were measured, the fastest of those; else, by prediction, of those
        that fit and did not fail when they ran.
        """
        ran = {
            row.measured.step_s: row
            for row in reversed(self.rows)
            if row.measured and row.measured.step_s
        }
        if ran:
            return ran[min(ran)]
        fitting = [row for row in self.rows if row.step_s is not None]
        left = [row for row in fitting if not (row.measured and row.measured.failed)]
        return min(left, key=lambda row: row.step_s or 0.0, default=None)

    @property
    def launch(self) -> str | None:
        """The command that starts the best on its GPUs; ``train.py`` is the user's."""
        if self.best is None:
            return None
        per_node = self.gpus // self.nodes
        gpus = self.best.layout.gpus
        if gpus <= per_node:
            return f"deepspeed --num_gpus {gpus} train.py"
        nodes = gpus // per_node
        return (
            f"deepspeed --hostfile hostfile --num_nodes {nodes} "
            f"--num_gpus {per_node} train.py"
        )

    def samples_per_s(self, row: Row) -> float | None:
        """Return the throughput of a layout; None without a plan."""
        return self.batch / row.step_s if row.step_s else None

    def efficiency(self, row: Row) -> float | None:
        """Return throughput as a share of that of as many GPUs, each on its own."""
        if not row.step_s or not self.one_gpu_step_s:
            return None
        return self.one_gpu_step_s / (row.layout.gpus * row.step_s)

    def __str__(self) -> str:
        """Return the table as text."""
        return tuning_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for reports and files (``schema_version`` 1)."""
        graph = self.costed.graph
        kind = type(graph.model)
        best = self.best
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "fx-partitioner tuning",
            "model_class": f"{kind.__module__}.{kind.__qualname__}",
            "profile": self.costed.profile.name,
            "dtype": str(graph.dtype).removeprefix("torch."),
            "batch": self.batch,
            "micro_batch_samples": self.samples,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "memory_limit_bytes": self.memory_limit_bytes,
            "one_gpu_step_s": self.one_gpu_step_s,
            "rows": [self._row(row) for row in self.rows],
            "measured_on": self.measured_on,
            "best": None if best is None else self.rows.index(best),
            "launch": self.launch,
        }

    def _row(self, row: Row) -> dict[str, Any]:
        layout, plan = row.layout, row.plan
        return {
            "name": layout.name,
            "stages": layout.stages,
            "replicas": layout.replicas,
            "schedule": layout.schedule,
            "zero_stage": layout.zero_stage,
            "micro_batches": row.micro_batches,
            "step_s": row.step_s,
            "replica_sums_s": row.replica_sums_s if plan else None,
            "samples_per_s": self.samples_per_s(row),
            "efficiency": self.efficiency(row),
            "bubble_share": plan.simulation.bubble_share if plan else None,
            "recomputes": any(plan.assignment.recomputed) if plan else None,
            "memory_bytes": row.memory_bytes,
            "reason": row.reason,
            "advice": row.advice,
            "measured_step_s": row.measured and row.measured.step_s,
            "measured_memory_bytes": row.measured and row.measured.memory_bytes,
            "measured_reason": row.measured.reason if row.measured else "",
        }

    def save(self, folder: str | Path) -> None:
        """Write the best plan and its DeepSpeed configuration into a folder.

        Args:
            folder: Made if it is not there; gets ``plan.json``, for ``Plan.load``, and
                ``ds_config.json``.

        Raises:
            InfeasibleError: Nothing fits.
            PartitionerError: A file cannot be written.
        """
        if self.best is None or self.best.plan is None:
            hint = "see why each layout is out, and what would fit"
            raise InfeasibleError("no layout fits: there is no plan", hint=hint)
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"folder {place} cannot be made: {error.strerror}"
            raise PartitionerError(message, hint="choose another folder") from error
        self.best.plan.save(place / "plan.json")
        text = json.dumps(self.best.plan.ds_config(), indent=2) + "\n"
        write_whole(place / "ds_config.json", text, "the configuration")
