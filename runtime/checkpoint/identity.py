"""What the plan hands to a training process, so that its checkpoints have names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from partitioner.runtime.loss import LossLayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from partitioner.runtime.checkpoint.manifest import PlanIdentity

__all__ = [
    "PlanRecord",
    "is_foreign",
    "is_placeholder",
    "name_in_file",
    "parameter_names",
    "recorded_name",
    "recorded_state",
]

# No module's attribute can begin so.
_LOSS, _EMPTY = "<loss_fn>.", "<empty "


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """The plan that a pipeline was built of.

    Args:
        identity: What goes into every checkpoint.
        unplaced: Tensors of the model's ``state_dict`` that no segment holds, since
            its forward does not use them.
    """

    identity: PlanIdentity
    unplaced: Mapping[str, Tensor] = field(default_factory=dict)


def recorded_state(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's ``state_dict`` under the names that checkpoints use.

    Those of the original model; what the user's loss has is in angle brackets.
    """
    return {
        recorded_name(layer, name): value for name, value in layer.state_dict().items()
    }


def recorded_name(layer: nn.Module, name: str) -> str:
    """Return the name for checkpoints of what a layer calls ``name``."""
    own = isinstance(layer, LossLayer)
    return name.replace("loss_fn.", _LOSS, 1) if own else name


def name_in_file(name: str) -> str:
    """Return what DeepSpeed calls a name in the layer's file."""
    return name.replace(_LOSS, "loss_fn.", 1)


def parameter_names(module: Any, plan: PlanIdentity) -> dict[int, str]:
    """Return the recorded name of each parameter of this rank, by ``id``.

    Args:
        module: The pipeline module.
        plan: Knows the first of several names.
    """
    names = {
        id(parameter): f"{_EMPTY}{name}>"
        for name, parameter in module.named_parameters(recurse=False)
    }
    for layer in module.local_layers():
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            recorded = recorded_name(layer, name)
            names[id(parameter)] = plan.first_name(recorded)
    return names


def is_placeholder(name: str) -> bool:
    """Whether a parameter only stands for an empty group of the optimizer."""
    return name.startswith(_EMPTY)


def is_foreign(name: str) -> bool:
    """Whether a name is none of the original model's."""
    return name.startswith("<")
