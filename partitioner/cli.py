"""The command line: a target and options → a report on stdout, talk on stderr.

Exit codes: 0 fine; 1 no plan, an unsupported model or a failed verification; 2 usage.
torch and the compiler are imported only when a command runs, so that ``--help`` is
quick.
"""

from __future__ import annotations

import io
import sys
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from partitioner import __version__
from partitioner.errors import PartitionerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

    from partitioner.plan import Plan

__all__ = ["main"]


class _Failure(click.ClickException):
    """An error that is meant for the user: two lines on stderr, exit code 1."""

    exit_code = 1

    def __init__(self, error: PartitionerError) -> None:
        super().__init__(error.message)
        self.hint = error.hint

    def show(self, file: Any = None) -> None:
        """Print ``error:`` and, where there is one, ``hint:``."""
        click.echo(f"error: {self.message}", file=file, err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file, err=True)


class _Group(click.Group):
    """A group of commands whose package errors become messages, not tracebacks."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was chosen."""
        try:
            return super().invoke(ctx)
        except PartitionerError as error:
            raise _Failure(error) from error


def _writable(
    _context: click.Context, _parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse an unusable place before minutes are spent on a plan for it."""
    if path is None:
        return None
    parent = path.absolute().parent
    if not parent.is_dir():
        message = f"folder {parent} does not exist"
        raise click.BadParameter(message)
    if path.exists() and not path.is_file():
        message = f"{path} exists and is not a regular file"
        raise click.BadParameter(message)
    return path


_POSITIVE = click.IntRange(min=1)

_TARGET = click.argument("target", metavar="TARGET")
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout instead of a table."
)
_PLANNING = (
    click.option(
        "--micro-batches",
        type=_POSITIVE,
        show_default="four times the stages",
        metavar="M",
        help="Micro-batches per step.",
    ),
    click.option(
        "--device",
        show_default="the accelerator present, else cpu",
        metavar="NAME",
        help="Profile to price for: cpu, a100-80g, h100, …, or a .toml or .json file.",
    ),
    click.option(
        "--memory-limit",
        metavar="SIZE",
        show_default="the device's",
        help="Memory of one stage, like 24GiB.",
    ),
    click.option(
        "--dtype",
        metavar="DTYPE",
        show_default="the model's",
        help="Dtype to record and price in, like bfloat16.",
    ),
    click.option(
        "--optimizer",
        default="adamw",
        show_default=True,
        metavar="NAME",
        help="Optimizer whose states take memory.",
    ),
    click.option(
        "--checkpointing",
        type=click.Choice(["none", "auto", "all"]),
        default="auto",
        show_default=True,
        help="Where to recompute activations in backward.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["cbc", "highs"]),
        default="cbc",
        show_default=True,
        help="Program that looks for the best plan.",
    ),
    click.option(
        "--gap",
        type=click.FloatRange(min=0, max=1),
        default=0.01,
        show_default=True,
        metavar="FRACTION",
        help="Distance from the best step time at which to stop.",
    ),
    click.option(
        "--time-limit",
        "time_limit_s",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time for the solver; the best plan so far is used after it.",
    ),
)


def _planning(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_PLANNING):
        command = option(command)
    return command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="partitioner")
def main() -> None:
    """Cut a PyTorch model into a balanced pipeline that trains exactly like it.

    TARGET is model.py, model.py:attr or pkg.mod:attr, where attr is an nn.Module or a
    function that returns one. Without attr, the file's `model` or `build_model` is
    taken. `example_inputs` in the same file is one micro-batch for the forward.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # "…" on a terminal without Unicode


@main.command()
@_TARGET
@click.option(
    "--stages",
    type=_POSITIVE,
    default=2,
    show_default=True,
    metavar="N",
    help="Pipeline stages.",
)
@_planning
@_JSON
@click.option(
    "-o",
    "--output",
    type=click.Path(writable=True, path_type=Path),
    callback=_writable,
    metavar="FILE",
    help="Also write the plan to FILE, for Plan.load.",
)
def inspect(target: str, *, as_json: bool, output: Path | None, **options: Any) -> None:
    """Plan TARGET's pipeline and report it by stage."""
    from partitioner.report.table import plan_report

    with _planned(target, options) as plan:
        document = plan.to_dict()
        if output:
            _save(plan, output)
    _show(document, plan_report, as_json=as_json)


@main.command()
@_TARGET
@click.option(
    "--stages", type=_POSITIVE, required=True, metavar="N", help="Pipeline stages."
)
@_planning
@_JSON
def verify(target: str, *, as_json: bool, **options: Any) -> None:
    """Compare TARGET, cut into stages, with the original on its example inputs.

    Exits with 1 if any output, gradient or buffer differs by more than rounding.
    """
    from partitioner.report.verification import verification_report

    with _planned(target, options) as plan, _status("comparing with the original"):
        verification = plan.verify()
    _show(verification.to_dict(), verification_report, as_json=as_json)
    if not verification.ok:
        sys.exit(1)


def _save(plan: Plan, output: Path) -> None:
    plan.save(output)
    click.echo(f"plan written to {output}", err=True)


@contextmanager
def _planned(target: str, options: Mapping[str, Any]) -> Iterator[Plan]:
    """Load the target and plan it; whatever is printed meanwhile goes to stderr."""
    with redirect_stdout(sys.stderr):
        from partitioner.api import partition
        from partitioner.targets import open_target

        with open_target(target) as found:
            with _status(f"planning {found.name}"):
                plan = partition(
                    found.model, example_inputs=found.example_inputs, **options
                )
            yield plan


def _status(message: str) -> AbstractContextManager[Any]:
    """Show a spinner, on a terminal alone."""
    console = Console(stderr=True)
    return console.status(f"{message} …") if console.is_terminal else nullcontext()


def _show(
    document: Mapping[str, Any],
    report: Callable[[Mapping[str, Any]], RenderableType],
    *,
    as_json: bool,
) -> None:
    from partitioner.report.as_json import as_json as to_json
    from partitioner.report.console import to_text

    console = Console()
    if as_json:
        click.echo(to_json(document), nl=False)
    elif console.is_terminal:
        console.print(report(document))
    else:
        click.echo(to_text(report(document), width=console.width), nl=False)
