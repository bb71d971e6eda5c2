"""What a user may give as ``weights=``: a folder, a file, a hub id, or own rules."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.errors import OptionError
from partitioner.runtime.weights.files import FileWeights
from partitioner.runtime.weights.initial import RuleWeights
from partitioner.runtime.weights.locate import locate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from partitioner.runtime.weights.wanted import WeightSource

__all__ = ["GivenWeights", "InitialWeights", "open_weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """Initialise a model on ``meta`` by its modules' own rules.

    What a parameter gets depends on the seed and on the path of its module alone:
    not on the number of stages, nor on the rank that builds it. A module's rules are
    its own ``reset_parameters``, then those of the modules around it, then likewise
    ``_init_weights(module)`` (Hugging Face's convention), then ``apply``.

    Args:
        seed: Another seed gives other values.
        apply: What ``model.apply`` would be called with, if that is how the model
            is initialised.
    """

    seed: int = 0
    apply: Callable[[nn.Module], object] | None = None

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            OptionError: The seed is no number, or ``apply`` cannot be called.
        """
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            message = f"seed is a {type(self.seed).__name__}, not a whole number"
            raise OptionError(message)
        if self.apply is not None and not callable(self.apply):
            raise OptionError("apply cannot be called", hint="pass a function")


GivenWeights = str | os.PathLike[str] | InitialWeights
"""A folder, a file, the id of a model in the local hub cache, or own initialisation."""


def open_weights(weights: GivenWeights, model: nn.Module) -> WeightSource:
    """Return the source of values that the user means.

    Args:
        weights: A folder or file; the id of a model in the local hub cache; or own
            initialisation.
        model: The model, usually on ``meta``.

    Raises:
        OptionError: It is none of these.
        WeightsError: There is no such folder or file, or it holds no weights.
    """
    if isinstance(weights, InitialWeights):
        return RuleWeights(model, seed=weights.seed, apply=weights.apply)
    given: Any = weights
    if not isinstance(given, str | os.PathLike):
        raise OptionError(
            f"weights is a {type(given).__name__}",
            hint="pass a folder, a file, or InitialWeights(seed=0)",
        )
    return FileWeights(locate(given), model)
