"""What commands share: open a target, plan it, talk on stderr, report on stdout."""

from __future__ import annotations

import sys
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from partitioner.cli.encoding import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from partitioner.cli.target import Typed
    from partitioner.plan import Plan
    from partitioner.targets import Target

__all__ = ["bound", "opened", "planned", "progress", "show", "status"]


@contextmanager
def opened(target: Typed, *, weights: bool = False) -> Iterator[Target]:
    """Load the target; whatever is printed meanwhile goes to stderr.

    Args:
        target: As typed.
        weights: The model is to run.
    """
    with redirect_stdout(sys.stderr):
        from partitioner.targets import HuggingFaceOptions, open_target

        options = HuggingFaceOptions(**target.options)
        with open_target(target.text, options=options, weights=weights) as found:
            yield found


@contextmanager
def planned(
    target: Typed, options: Mapping[str, Any], *, weights: bool = False
) -> Iterator[Plan]:
    """Load the target and plan it; whatever is printed meanwhile goes to stderr.

    Args:
        target: As typed.
        options: Of ``partition()``.
        weights: The model is to run.
    """
    with opened(target, weights=weights) as found:
        from partitioner.api import partition

        with status(f"planning {found.name}"):
            plan = partition(found.model, **found.arguments(), **options)
        yield plan


@contextmanager
def bound(target: Typed, path: Path) -> Iterator[Plan]:
    """Load the target and a stored plan for it.

    Args:
        target: As typed.
        path: What ``Plan.save`` wrote.
    """
    with opened(target) as found:
        from partitioner.plan import Plan

        with status(f"recording {found.name}"):
            plan = Plan.load(path, found.model)
        yield plan


def status(message: str) -> AbstractContextManager[Any]:
    """Show a spinner, on a terminal alone."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return nullcontext()
    return console.status(f"{message} …", spinner=_spinner(console))


def _spinner(console: Console) -> str:
    return "dots" if console.encoding.startswith("utf") else "line"


@contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """Show sentences as they come: in the spinner, or a line each off a terminal."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"{message} …", spinner=_spinner(console)) as status:
            yield lambda text: status.update(f"{text} …")
    else:
        yield say


def show(
    document: Mapping[str, Any],
    report: Callable[[Mapping[str, Any]], RenderableType],
    *,
    as_json: bool,
) -> None:
    """Print a document: as JSON, or as its report, as wide as the terminal."""
    from partitioner.report.as_json import as_json as to_json
    from partitioner.report.console import to_text

    console = Console()
    if as_json:
        click.echo(to_json(document), file=sys.stdout, nl=False)
    elif console.is_terminal:
        console.print(report(document))
    else:
        text = to_text(report(document), width=console.width)
        click.echo(text, file=sys.stdout, nl=False)
