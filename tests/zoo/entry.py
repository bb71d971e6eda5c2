"""What the zoo knows of one model: how to build it, feed it, cut it, what to expect."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

__all__ = [
    "ATTENTION",
    "BATCH_NORM",
    "MLP",
    "VOCABULARY",
    "EncoderDecoder",
    "Entry",
    "Missing",
    "Plain",
    "Pretrained",
    "Transformer",
    "built",
    "example",
    "generator",
    "images",
    "no_caches",
    "noise",
    "padding",
    "seed_all",
    "tokens",
]

VOCABULARY = 99

HUGGING_FACE = frozenset(dir(transformers))
"""Names of transformers, whose modules are only imported when they are used."""

BATCH_NORM = "batch norm on a CPU takes no bfloat16 weights with float32 statistics"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model of the zoo."""

    name: str
    build: Callable[[], nn.Module]
    """Returns the model in train mode, dropout on."""
    inputs: Callable[[int, int], Any]
    """Takes samples and length, returns example inputs."""
    length: int | None = None
    """Sequence length of the example; None if the model has none."""
    other_length: int | None = None
    """A second length, shorter; None: two thirds of the first."""
    samples: int = 2
    leaves: Mapping[str, str] = field(default_factory=dict)
    """Path of each module that runs as a whole → what its reason says."""
    through: tuple[str, ...] = ()
    """Patterns of module paths that one cut each must go through: inside the module,
    or right after it if it is called as a whole (where an MLP is no module)."""
    no_bf16: str = ""
    """Why the model itself does not run in bfloat16."""
    fixed_batch: str = ""
    """Why no other batch size can run: what the note says."""
    fixed_length: str = ""
    """Why no other length can run: what the note says."""
    heavy_leaf: str = ""
    """Why a leaf may hold more than a quarter of the FLOPs."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A model that the installed libraries do not have."""

    name: str
    reason: str


ATTENTION = r"(attention|attn|self_attention|attn1)$"
MLP = r"(mlp|feed_forward|ffn|ff|DenseReluDense)$"


def Plain(name: str, build: Callable[[], nn.Module], **more: Any) -> Entry:
    """An entry whose only input is a batch of 6 features per sample."""
    more.setdefault("inputs", lambda n, _: noise(n, 6))
    return Entry(name=name, build=build, **more)


def Transformer(name: str, build: Callable[[], nn.Module], **more: Any) -> Entry:
    """An entry that reads tokens; cut inside attention and inside the MLP."""
    defaults: dict[str, Any] = {
        "length": 16,
        "inputs": lambda n, length: {"input_ids": tokens(n, length)},
        "through": (ATTENTION, MLP),
    }
    return Entry(name=name, build=build, **(defaults | more))


def Pretrained(
    name: str, model: str, config: str, sizes: Mapping[str, Any], **more: Any
) -> Entry | Missing:
    """A transformer of the library of that name, with random weights.

    Args:
        name: The entry's name.
        model: Name of the model's class.
        config: Name of its configuration's class.
        sizes: What the configuration is made with.
        more: Further fields of the entry.
    """
    absent = {model, config} - HUGGING_FACE
    if absent:
        version = transformers.__version__
        reason = f"transformers {version} has no {' and no '.join(sorted(absent))}"
        return Missing(name=name, reason=reason)

    def build() -> nn.Module:
        settings = getattr(transformers, config)(**sizes)
        built: nn.Module = getattr(transformers, model)(settings)
        return built.train()

    return Transformer(name, build, **more)


def EncoderDecoder(name: str, build: Callable[[], nn.Module], **more: Any) -> Entry:
    """An entry that reads tokens with padding, and tokens to decode."""
    defaults: dict[str, Any] = {
        "length": 16,
        "inputs": lambda n, length: {
            "input_ids": tokens(n, length),
            "attention_mask": padding(n, length),
            "decoder_input_ids": tokens(n, 12),
        },
        "through": (ATTENTION, MLP),
    }
    return Entry(name=name, build=build, **(defaults | more))


def generator(*key: Any) -> torch.Generator:
    """Return a generator that depends on ``key`` alone."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(shape))


def tokens(samples: int, length: int) -> Tensor:
    shape = (samples, length)
    return torch.randint(3, VOCABULARY, shape, generator=generator("tokens", shape))


def padding(samples: int, length: int) -> Tensor:
    """A mask with another number of padded positions in every sample."""
    draw = generator("padding", samples, length)
    kept = torch.randint(length // 2, length + 1, (samples, 1), generator=draw)
    return (torch.arange(length) < kept).long()


def images(samples: int, size: int = 16, channels: int = 3) -> Tensor:
    return noise(samples, channels, size, size)


def built(entry: Entry) -> nn.Module:
    """Build the model of an entry; each time the same."""
    seed_all(0)
    return entry.build()


def seed_all(seed: int) -> None:
    """Seed every generator that a model might draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def example(entry: Entry, samples: int | None = None, length: int | None = None) -> Any:
    """Return one micro-batch for an entry."""
    return entry.inputs(samples or entry.samples, length or entry.length or 0)


def no_caches(model: nn.Module) -> None:
    """Switch key/value caches off, as recording and training do."""
    for module in model.modules():
        config: Any = module.__dict__.get("config")
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
