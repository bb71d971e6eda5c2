"""A configuration without a fault, and what tests change in it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from partitioner import partition
from partitioner.doctor import Examination, Machine, examine
from partitioner.doctor.pci import Accelerator
from tests.models import MODELS

CLEAN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 64,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "gradient_clipping": 0.0,
    "dataloader_drop_last": True,
}
"""What no rule has anything to say of, on two stages."""

_GIBI = 2**30

MACHINE = Machine(
    environment={},
    cores=tuple(range(8)),
    node_cores={0: (0, 1, 2, 3), 1: (4, 5, 6, 7)},
    accelerators=(),
    interfaces=("eth0", "eth1", "lo"),
    infiniband=(),
    shared_memory_bytes=8 * _GIBI,
    locked_memory_bytes=-1,
    governor="performance",
    numa_balancing=False,
    compiler="/usr/local/cuda/bin/nvcc",
)
"""A machine that no rule has anything to say of."""


def config(**entries: Any) -> dict[str, Any]:
    """The clean configuration with other entries; None takes one out."""
    merged = {**deepcopy(CLEAN), **entries}
    return {key: value for key, value in merged.items() if value is not None}


def gpu(node: int | None = 0, *, width: int = 16) -> Accelerator:
    return Accelerator(
        address="0000:17:00.0",
        vendor="NVIDIA",
        numa_node=node,
        speed="2.5 GT/s PCIe",
        max_speed="32.0 GT/s PCIe",
        width=width,
        max_width=16,
    )


@cache
def _plan() -> dict[str, Any]:
    entry = MODELS["mlp"]
    plan = partition(
        entry.model(), 2, example_inputs=entry.example(), micro_batches=8, device="h100"
    )
    return plan.to_dict()


def plan_document(**options: Any) -> dict[str, Any]:
    """A plan of two stages and eight micro-batches, with other options."""
    document = deepcopy(_plan())
    document["options"].update(options)
    return document


def planned(**entries: Any) -> dict[str, Any]:
    """A clean configuration for that plan."""
    size = _plan()["inputs"][0]["shape"][0]
    own = {
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": 8,
    }
    return config(**{**own, **entries})


def look(of: dict[str, Any], **known: Any) -> Examination:
    """Examine on two stages, unless something else is known."""
    if "plan" not in known:
        known.setdefault("stages", 2)
    return examine(of, **known)


def codes(of: dict[str, Any], **known: Any) -> set[str]:
    return {finding.code for finding in look(of, **known).findings}
