"""What the plan hands to a training process, so that its checkpoints have names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from partitioner.runtime.checkpoint.manifest import PlanIdentity

__all__ = ["PlanRecord", "parameter_names", "segment_parameters"]


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


def segment_parameters(layers: list[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield this stage's parameters under all their names."""
    for layer in layers:
        yield from layer.named_parameters(remove_duplicate=False)


def parameter_names(layers: list[nn.Module], plan: PlanIdentity) -> dict[int, str]:
    """Return the first original name of each of this stage's parameters, by ``id``."""
    return {
        id(parameter): plan.first_name(name)
        for name, parameter in segment_parameters(layers)
    }
