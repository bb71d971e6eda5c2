"""What a configuration of transformers says about the sizes of its model's inputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    import torch

__all__ = ["Facts"]

_TEXT_PARTS = ("decoder", "text_config", "text_encoder", "generator")
_IMAGE_PARTS = ("vision_config", "encoder", "backbone_config", "image_encoder")


@dataclass(frozen=True, slots=True)
class Facts:
    """A model and its configuration, asked for what inputs need to know."""

    model: Any

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of floating-point inputs: the model's own."""
        found: torch.dtype = self.model.dtype
        return found

    @property
    def main_input(self) -> str:
        """The forward's first input, by name."""
        return str(self.model.main_input_name)

    def takes(self, name: str) -> bool:
        """Whether the forward has a parameter of that name."""
        return name in inspect.signature(self.model.forward).parameters

    def number(self, *names: str) -> int | None:
        """Return the first of some settings that is a positive number."""
        found = (getattr(self.config, name, None) for name in names)
        return next((each for each in found if _positive(each)), None)

    def text(self, name: str) -> int | None:
        """Return a setting of the part that reads or writes tokens."""
        for part in _parts(self.config, _TEXT_PARTS):
            found: Any = getattr(part, name, None)
            if _positive(found):
                return int(found)
        return None

    def image(self, name: str) -> Any:
        """Return a setting of the part that sees images."""
        for part in _parts(self.config, _IMAGE_PARTS):
            if (found := getattr(part, name, None)) is not None:
                return found
        return None

    def positions(self) -> int | None:
        """Return how many tokens there are positions for; None: no such limit.

        RoBERTa and its kin count positions from after the padding's own.
        """
        named = self.text("max_position_embeddings")
        limits = [named] if named else []
        for path, module in self.model.named_modules():
            if not isinstance(module, nn.Embedding) or module.padding_idx is None:
                continue
            if path.endswith("position_embeddings"):
                limits.append(module.num_embeddings - module.padding_idx - 1)
        return min(limits, default=None)

    def special_tokens(self) -> set[int]:
        """Return ids that stand for no word: padding, an image's place."""
        found: set[int] = set()
        for part in _parts(self.config, _TEXT_PARTS):
            for name, value in part.to_dict().items():
                ids = value if isinstance(value, list) else [value]
                if name.endswith(("token_id", "token_index")):
                    found.update(each for each in ids if isinstance(each, int))
        return found


def _parts(config: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the parts of a configuration that exist, and the whole after them."""
    parts = [getattr(config, name, None) for name in names]
    return [part for part in parts if hasattr(part, "to_dict")] + [config]


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
