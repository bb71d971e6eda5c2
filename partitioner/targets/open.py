"""What was typed → the model, whichever kind of target it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from partitioner.errors import TargetError
from partitioner.targets.attribute import find_model
from partitioner.targets.configuration import cached_configuration, configuration_file
from partitioner.targets.hf_model import build_target
from partitioner.targets.python_file import imported
from partitioner.targets.target import HuggingFaceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partitioner.targets.target import Target

__all__ = ["open_target"]


@contextmanager
def open_target(
    text: str,
    *,
    options: HuggingFaceOptions | None = None,
    weights: bool = False,
) -> Iterator[Target]:
    """Load a target and keep its folder importable while the model is in use.

    Args:
        text: The target as typed.
        options: What to make of a Hugging Face model.
        weights: The model is to run: one of Hugging Face gets random weights, and is
            not built on ``meta``.

    Yields:
        The model with its example inputs.

    Raises:
        TargetError: The file or module is missing, fails to import (the error is
            chained), holds no model or several, its factory fails, or the options do
            not fit it.
    """
    options = options or HuggingFaceOptions()
    place, attribute = _split(text)
    file = None if attribute else _configuration(place, options)
    if file:
        yield build_target(place, file, options, weights=weights)
        return
    with imported(place) as (module, folder):
        _refuse(options, place)
        yield find_model(module, place, attribute, folder)


def _configuration(place: str, options: HuggingFaceOptions) -> Path | None:
    return configuration_file(place) or cached_configuration(
        place, sure=options.hf_class is not None
    )


def _split(text: str) -> tuple[str, str]:
    place, _, attribute = text.partition(":")
    if place and (attribute or ":" not in text):
        return place, attribute
    message = (
        f"target {text!r} is not of the form model.py[:attr], pkg.mod:attr or FOLDER"
    )
    raise TargetError(message, hint="write, for example, model.py:build_model")


def _refuse(options: HuggingFaceOptions, place: str) -> None:
    if options.given():
        names = ", ".join(options.given())
        message = f"{place} is Python code, and no Hugging Face model: {names}"
        hint = "set sizes in its example_inputs, or give a folder with config.json"
        raise TargetError(message, hint=hint)
