"""What the plan hands to a training process, so that its checkpoints have names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from partitioner.runtime.checkpoint.manifest import PlanIdentity

__all__ = ["PlanRecord", "is_placeholder", "parameter_names"]


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


def parameter_names(module: Any, plan: PlanIdentity) -> dict[int, str]:
    """Return the name of each parameter of this rank, by ``id``.

    Args:
        module: The pipeline module.
        plan: Knows the first of several names.

    Returns:
        Original names; what only stands for an empty group is in angle brackets.
    """
    names = {
        id(parameter): f"<{name}>"
        for name, parameter in module.named_parameters(recurse=False)
    }
    for layer in module.local_layers():
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            names[id(parameter)] = plan.first_name(name)
    return names


def is_placeholder(name: str) -> bool:
    """Whether a parameter is none of the model's."""
    return name.startswith("<")
