"""What ranks do with a model on ``meta``: build, train, and say how much it took."""

from __future__ import annotations

import ctypes
import gc
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import PartitionerError, Plan, partition
from tests.distributed.parity import Case, batches, loss_of, make_optimizer
from tests.models import MODELS

__all__ = ["LAYERS", "Built", "build_and_measure", "train_from", "wide"]

WIDTH, LAYERS = 2560, 16
Source = Any


def wide() -> nn.Sequential:
    """Return a model whose weights outweigh everything else: 16 times 25 MiB."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


@dataclass(kw_only=True)
class Built:
    """What building one rank's stage took and gave."""

    own: int
    """Bytes of its parameters and buffers."""
    peak: int
    """Largest growth of resident memory meanwhile, in bytes."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of each of its tensors."""
    error: str = ""


def build_and_measure(sources: list[Source], stages: int) -> list[Built]:
    """Build this rank's stage from each source, one after the other."""
    with torch.device("meta"):
        model = wide()
    plan = _planned(model, torch.randn(2, WIDTH), stages)
    return [_build(plan, source) for source in sources]


def _planned(model: nn.Module, example: Any, stages: int, **options: Any) -> Plan:
    return partition(
        model,
        stages,
        example_inputs=example,
        micro_batches=4,
        device="h100",
        checkpointing="none",
        gap=0.05,
        **options,
    )


def _build(plan: Plan, source: Source) -> Built:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what planning has freed is not to be used again
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, own_before = _status("VmRSS"), _status("RssAnon")
    try:
        module = plan.pipeline_module(nn.functional.mse_loss, weights=source)
    except PartitionerError as error:
        return Built(own=0, peak=0, error=f"{type(error).__name__}: {error}")
    # The kernel may meanwhile drop pages of the libraries: then the first is too small.
    peak = max(_status("VmHWM") - before, _status("RssAnon") - own_before)
    tensors = list(_tensors(module).items())
    assert all(tensor.is_meta for tensor in plan.graph.model.parameters())
    return Built(
        own=sum(tensor.numel() * tensor.itemsize for _, tensor in tensors),
        peak=peak,
        sums={name: tensor.double().sum().item() for name, tensor in tensors},
    )


def _status(entry: str) -> int:
    """Return a number of bytes that the kernel keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{entry}:")]
    return int(line.split()[1]) * 1024


def _tensors(module: Any) -> dict[str, Tensor]:
    return {
        name: tensor.detach()
        for layer in module.local_layers()
        for name, tensor in itertools.chain(
            layer.named_parameters(), layer.named_buffers()
        )
    }


@dataclass(kw_only=True)
class Trained:
    """Losses, and the stage's weights before and after."""

    losses: list[float] = field(default_factory=list)
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    error: str = ""


def train_from(
    case: Case, sources: list[Source], schedule: str = "1f1b"
) -> list[Trained]:
    """Train this rank's stage from each source; None: from a model that has values."""
    return [_train(case, source, schedule) for source in sources]


def _train(case: Case, source: Source, schedule: str) -> Trained:
    entry = MODELS[case.model]
    with torch.device("cpu" if source is None else "meta"):
        model = entry.model(dropout=0.0)
    plan = _planned(model, entry.example(), case.stages, schedule=schedule)
    try:
        engine, *_ = plan.initialize(
            loss_of(case.model),
            weights=source,
            optimizer=lambda parameters: make_optimizer(case, parameters),
        )
    except PartitionerError as error:
        return Trained(error=f"{type(error).__name__}: {error}")
    before = {name: t.clone() for name, t in _tensors(engine.module).items()}
    losses = [
        engine.train_batch(iter(micro_batches)).item()
        for micro_batches in batches(case)
    ]
    after = {name: t.clone() for name, t in _tensors(engine.module).items()}
    engine.destroy()
    dist.barrier()
    return Trained(losses=losses, before=before, after=after)
