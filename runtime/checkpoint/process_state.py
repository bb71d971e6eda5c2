"""What a process remembers beside its stage: random generators and attached objects."""

from __future__ import annotations

import random
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator

__all__ = ["Stateful", "random_states", "restore_random_states"]


@runtime_checkable
class Stateful(Protocol):
    """An object whose position in its work can be kept: a data loader, a sampler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Go to a position."""


def random_states() -> dict[str, Any]:
    """Return the states of all global generators, as tensors and plain data."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "numbers": list(numbers), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
        "device": _device_state(),
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put all global generators where they were."""
    python, numpy = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["numbers"]), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    np.random.set_state(
        (
            numpy["kind"],
            keys,
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached"],
        )
    )
    torch.set_rng_state(states["torch"].clone())
    if states["device"] is not None and _device_state() is not None:
        get_accelerator().set_rng_state(states["device"].clone())


def _device_state() -> torch.Tensor | None:
    """Return the state of the device's own generator; None on the CPU."""
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return None
    state: torch.Tensor = accelerator.get_rng_state()
    return state
