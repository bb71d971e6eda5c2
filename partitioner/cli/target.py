"""TARGET on the command line, and what may be said about it; ``targets`` opens it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from partitioner.cli.options import POSITIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Typed", "target_argument"]

_OPTIONS = ("hf_class", "micro_batch", "seq_len", "image_size")


@dataclass(frozen=True, slots=True)
class Typed:
    """A target as it was typed, not yet opened."""

    text: str
    options: Mapping[str, Any]
    """Of ``HuggingFaceOptions``."""


def _files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete a target as a path."""
    return [CompletionItem(incomplete, type="file")]


def target_argument(
    *batch_names: str, required: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command TARGET and its options.

    The command is called with ``target=``, a :class:`Typed`, or None.

    Args:
        *batch_names: What the samples of a micro-batch are called there; by default
            ``--micro-batch`` and ``--batch``.
        required: The command needs a target.
    """
    names = batch_names or ("--micro-batch", "--batch")

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def gathered(*, target: str | None, **given: Any) -> None:
            of_target = {name: given.pop(name) for name in _OPTIONS}
            typed = None if target is None else Typed(target, of_target)
            command(target=typed, **given)

        for option in (*reversed(_hugging_face(names)), _argument(required=required)):
            gathered = option(gathered)
        return gathered

    return decorated


def _argument(*, required: bool) -> Callable[..., Any]:
    return click.argument(
        "target",
        metavar="TARGET" if required else "[TARGET]",
        required=required,
        shell_complete=_files,
    )


def _hugging_face(batch_names: tuple[str, ...]) -> list[Callable[..., Any]]:
    """Return the options that say what to make of a Hugging Face model."""
    return [
        click.option(
            "--hf-class",
            metavar="NAME",
            show_default="as in config.json, else a causal LM",
            help="Class of a Hugging Face model, like AutoModelForCausalLM.",
        ),
        _size(
            *batch_names,
            "micro_batch",
            default="1",
            text="Samples in a micro-batch of a Hugging Face model.",
        ),
        _size(
            "--seq-len",
            default="its positions, at most 2048",
            text="Tokens of a sample of one, or samples of sound.",
        ),
        _size(
            "--image-size",
            default="its own",
            text="Height and width of the images of one.",
        ),
    ]


def _size(*names: str, default: str, text: str) -> Callable[..., Any]:
    return click.option(
        *names, type=POSITIVE, metavar="N", show_default=default, help=text
    )
