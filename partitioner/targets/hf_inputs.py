"""A model of transformers → one micro-batch for it, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from partitioner.errors import TargetError
from partitioner.targets.hf_facts import Facts
from partitioner.targets.hf_labels import labels_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from partitioner.targets.target import HuggingFaceOptions

__all__ = ["make_inputs"]

LONGEST = 2048
"""Tokens of a sequence where nothing is asked for and the model could read more."""
WITHOUT_POSITIONS = 512
"""Tokens where the model has no limit, and samples of nothing else say how many."""
SOUND = 160_000
"""Samples of sound: ten seconds at 16 kHz."""
IMAGE_SIDE = 224
CHOICES = 2
"""Answers to choose from, of a model for multiple choice."""
_WHISPER_STRIDE = 2
"""Frames of sound for each position of Whisper's encoder."""
_WIDTHS = ("input_feat_per_channel", "feature_projection_input_dim")
"""Names of a frame's width, where frames come before what they hold."""
_DRAWN_FROM = 1000
"""So many ids are enough to draw tokens from."""


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A micro-batch in the making, with what was assumed for it."""

    facts: Facts
    options: HuggingFaceOptions
    samples: int
    inputs: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Options that have a meaning for this model."""

    def size(self, option: str, default: int, why: str) -> int:
        """Return a size that was asked for, or a default that is told."""
        self.used.add(option)
        asked: int | None = getattr(self.options, option)
        if asked is not None:
            return asked
        self.assumed.append(f"--{option.replace('_', '-')} {default} ({why})")
        return default


def make_inputs(
    model: Any, options: HuggingFaceOptions
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Make one micro-batch: random tokens, noise for images and sound, and labels.

    Sequences are full, so that there is no attention mask; where the class computes
    its own loss from labels, they are there, and the loss is part of the plan.

    Args:
        model: A model of transformers, on any device.
        options: The sizes that were asked for.

    Returns:
        The micro-batch, and what the report is to say of it.

    Raises:
        TargetError: A size is out of range or has no meaning for this model, or its
            inputs cannot be told from the configuration.
    """
    batch = _Batch(
        facts=Facts(model), options=options, samples=options.micro_batch or 1
    )
    if options.micro_batch is None:
        batch.assumed.append("--micro-batch 1")
    _main_input(batch)
    if batch.facts.takes("return_loss") and "pixel_values" not in batch.inputs:
        _pictures(batch)  # two encoders, for text and for images
        batch.inputs["return_loss"] = True
    if batch.facts.takes("decoder_input_ids"):
        batch.inputs["decoder_input_ids"] = _tokens(batch, _decoder_length(batch))
    labels, said = labels_for(batch.facts, batch.inputs)
    batch.inputs.update(labels)
    _refuse_idle(batch)
    return batch.inputs, tuple(_notes(batch, said))


def _main_input(batch: _Batch) -> None:
    makers = {
        "input_ids": _text,
        "pixel_values": _pictures,
        "input_features": _features,
        "input_values": _sound,
    }
    facts = batch.facts
    if facts.main_input in makers:
        makers[facts.main_input](batch)
        return
    message = (
        f"no example inputs for {facts.name}: its first input, {facts.main_input}, "
        "cannot be made from its configuration"
    )
    raise TargetError(message, hint=_OWN_FILE)


_OWN_FILE = "write a model.py with build_model() and example_inputs, one micro-batch"


def _text(batch: _Batch) -> None:
    ids = _tokens(batch, _length(batch))
    if batch.facts.name.endswith("ForMultipleChoice"):
        ids = ids.unsqueeze(1).repeat(1, CHOICES, 1)
    batch.inputs["input_ids"] = ids
    if batch.facts.takes("pixel_values") and not batch.facts.takes("return_loss"):
        batch.assumed.append("text alone, no images")


def _length(batch: _Batch) -> int:
    limit = batch.facts.positions()
    if limit is None:
        why = "the model has no largest number of positions"
        return batch.size("seq_len", WITHOUT_POSITIONS, why)
    why = "the model's positions" if limit <= LONGEST else f"the model has {limit}"
    length = batch.size("seq_len", min(limit, LONGEST), why)
    _check_length(batch, length, limit)
    return length


def _decoder_length(batch: _Batch) -> int:
    if batch.facts.main_input == "input_ids":
        return int(batch.inputs["input_ids"].shape[-1])
    limit = batch.facts.number("max_target_positions") or batch.facts.positions()
    why = "the decoder's positions" if limit else "the decoder has no limit"
    default = min(limit or WITHOUT_POSITIONS, LONGEST)
    length = batch.size("seq_len", default, why)
    _check_length(batch, length, limit or length)
    return length


def _check_length(batch: _Batch, length: int, limit: int) -> None:
    if length > limit:
        message = f"--seq-len {length} is longer than {batch.facts.name}'s positions"
        raise TargetError(f"{message}, {limit}", hint=f"give at most --seq-len {limit}")


def _tokens(batch: _Batch, length: int) -> Tensor:
    """Draw words; no special tokens, where an image or padding would be expected."""
    vocabulary = batch.facts.text("vocab_size")
    if vocabulary is None:
        message = f"no example inputs for {batch.facts.name}: it names no vocab_size"
        raise TargetError(message, hint=_OWN_FILE)
    special = batch.facts.special_tokens()
    ids = range(min(vocabulary, _DRAWN_FROM))
    words = [each for each in ids if each not in special]
    drawn = torch.randint(
        len(words), (batch.samples, length), generator=torch.Generator().manual_seed(0)
    )
    return torch.tensor(words)[drawn]


def _pictures(batch: _Batch) -> None:
    facts = batch.facts
    stated = facts.image("image_size")
    height, width = stated if isinstance(stated, (list, tuple)) else (stated, stated)
    if batch.options.image_size is None and height:
        batch.used.add("image_size")
    else:
        why = "the configuration states none"
        height = width = batch.size("image_size", IMAGE_SIDE, why)
    _check_patches(facts, int(height), int(width))
    shape = [batch.samples, facts.image("num_channels") or 3, height, width]
    if frames := facts.number("num_frames"):
        shape.insert(1, frames)
    batch.inputs["pixel_values"] = _noise(shape, facts)


def _check_patches(facts: Facts, *sides: int) -> None:
    patch = facts.image("patch_size")
    patches = patch if isinstance(patch, (list, tuple)) else (patch, patch)
    for side, length in zip(sides, patches[-2:], strict=False):
        if isinstance(length, int) and side % length:
            message = (
                f"an image of {side} pixels is no multiple of {facts.name}'s patches "
                f"of {length}"
            )
            nearest = max(round(side / length), 1) * length
            raise TargetError(message, hint=f"give --image-size {nearest}, say")


def _features(batch: _Batch) -> None:
    """Make spectrograms, in the order of dimensions that each family has."""
    facts = batch.facts
    bins = facts.number("num_mel_bins")
    frames = facts.number("max_source_positions")
    if bins and frames:
        shape = (batch.samples, bins, frames * _WHISPER_STRIDE)
    elif width := facts.number(*_WIDTHS):
        shape = (batch.samples, frames or WITHOUT_POSITIONS, width)
    else:
        message = (
            f"no example inputs for {facts.name}: its configuration does not say what "
            "its input_features look like"
        )
        raise TargetError(message, hint=_OWN_FILE)
    batch.inputs["input_features"] = _noise(shape, facts)


def _sound(batch: _Batch) -> None:
    """Make sound as samples, or as a spectrogram where the model reads patches."""
    facts = batch.facts
    bins, frames = facts.number("num_mel_bins"), facts.number("max_length")
    if bins and frames and facts.number("patch_size"):
        shape: tuple[int, ...] = (batch.samples, frames, bins)
    else:
        why = "samples of sound, ten seconds at 16 kHz"
        shape = (batch.samples, batch.size("seq_len", SOUND, why))
    batch.inputs["input_values"] = _noise(shape, facts)


def _noise(shape: Sequence[int], facts: Facts) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator).to(facts.dtype)


def _refuse_idle(batch: _Batch) -> None:
    """Refuse a size that this model has no use for."""
    for option in ("seq_len", "image_size"):
        if getattr(batch.options, option) is not None and option not in batch.used:
            flag = f"--{option.replace('_', '-')}"
            names = ", ".join(batch.inputs)
            message = f"{flag} has no meaning for {batch.facts.name}: it reads {names}"
            raise TargetError(message, hint=f"leave {flag} out")


def _notes(batch: _Batch, said: str) -> list[str]:
    shapes = ", ".join(
        f"{name} {' × '.join(map(str, value.shape))}"
        for name, value in batch.inputs.items()
        if isinstance(value, torch.Tensor)
    )
    notes = [f"example inputs, made from the configuration: {shapes}; no padding", said]
    if batch.assumed:
        notes.append(f"assumed for them: {', '.join(batch.assumed)}")
    return notes
