"""A model's own initialisation as a source of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import OptionError
from partitioner.runtime.weights.copies import tensors_of
from partitioner.runtime.weights.rules import made_by_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor, nn

    from partitioner.runtime.weights.wanted import Wanted

__all__ = ["RuleWeights"]


class RuleWeights:
    """Gives what is on ``meta`` its initial values; what has values keeps them.

    Args:
        model: The whole model.
        seed: Another seed gives other values.
        apply: A function of a module, called last, as ``model.apply`` would.

    Raises:
        OptionError: Nothing of the model is on ``meta``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int,
        apply: Callable[[nn.Module], object] | None,
    ) -> None:
        if not any(tensor.is_meta for tensor in tensors_of(model)):
            raise OptionError(
                f"{type(model).__name__} has its values, all of them",
                hint='leave weights out, or build it with `torch.device("meta")`',
            )
        self._model = model
        self._seed = seed
        self._apply = apply

    def check(self, wanted: Sequence[Wanted]) -> None:
        """Do nothing: whether a rule sets a tensor is known once it has run."""

    def mapped(self, names: Sequence[str], tensor: Tensor) -> Tensor | None:  # noqa: ARG002 - there is no file
        """Return None."""
        return None

    def values(
        self, wanted: Sequence[Wanted], device: torch.device
    ) -> dict[int, Tensor]:
        """Return the values of each, on the device, by the id of the model's tensor.

        Raises:
            WeightsError: A rule failed, or there is none for a tensor.
        """
        return made_by_rules(
            self._model, wanted, device, seed=self._seed, apply=self._apply
        )
