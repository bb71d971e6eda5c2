"""Which class DeepSpeed makes of the ``optimizer`` entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

from partitioner.emit.ds_checks import offloads

if TYPE_CHECKING:
    from partitioner.doctor.case import Case

__all__ = [
    "ADAM",
    "adam_compiles",
    "optimizer_class",
    "optimizer_known",
    "right_spelling",
]

ADAM = ("adam", "adamw")

_OWN: dict[str, tuple[type, type]] = {
    "adam": (FusedAdam, DeepSpeedCPUAdam),
    "adamw": (FusedAdam, DeepSpeedCPUAdam),
    "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
    "lion": (FusedLion, DeepSpeedCPULion),
    "lamb": (FusedLamb, FusedLamb),
}
"""``DeepSpeedEngine._configure_basic_optimizer``: on the device, and offloaded."""


def optimizer_class(case: Case) -> Any:
    """Return the class; None if there is no entry, or it is not known here."""
    name = str(case.section("optimizer").get("type", ""))
    lower = name.lower()
    if lower in ADAM and case.section("optimizer", "params").get("torch_adam"):
        return torch.optim.AdamW if lower == "adamw" else torch.optim.Adam
    if lower in _OWN:
        on_device, offloaded = _OWN[lower]
        away = case.usable("zero_optimization") and offloads(case.parsed)
        return offloaded if away else on_device
    if lower in DEEPSPEED_OPTIMIZERS:
        return None
    return _torch_optimizers().get(name)


def optimizer_known(case: Case) -> bool:
    """Whether DeepSpeed makes anything of the entry's ``type``."""
    name = str(case.section("optimizer").get("type", ""))
    return name.lower() in DEEPSPEED_OPTIMIZERS or name in _torch_optimizers()


def right_spelling(name: str) -> str | None:
    """Return the optimizer of torch's that has the name in other letters."""
    names = {known.lower(): known for known in _torch_optimizers()}
    return names.get(name.lower())


def _torch_optimizers() -> dict[str, type]:
    # torch.optim also has modules: torch.optim.sgd beside torch.optim.SGD.
    found = vars(torch.optim).items()
    return {
        name: kind
        for name, kind in found
        if isinstance(kind, type) and kind is not torch.optim.Optimizer
    }


def adam_compiles(case: Case) -> bool:
    """Whether the entry is an Adam that DeepSpeed compiles at the start."""
    return optimizer_class(case) in (FusedAdam, DeepSpeedCPUAdam)
