"""The command line: a target and options → a report on stdout, talk on stderr.

Exit codes: 0 fine; 1 no plan, an unsupported model or a failed verification; 2 usage.
torch and the compiler are imported only when a command runs, so that ``--help`` is
quick.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from partitioner.cli.checkpoints import export, import_
from partitioner.cli.doctor import doctor
from partitioner.cli.encoding import degrade, say
from partitioner.cli.inspection import inspect
from partitioner.cli.options import JSON, POSITIVE, file_option, planning
from partitioner.cli.output import opened, planned, show, status
from partitioner.cli.target import Typed, target_argument
from partitioner.cli.timeline import replan, trace
from partitioner.cli.tune import tune
from partitioner.cli.version import version_option
from partitioner.errors import PartitionerError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["main"]


class _Failure(click.ClickException):
    """An error that is meant for the user: two lines on stderr, exit code 1."""

    exit_code = 1

    def __init__(self, error: PartitionerError) -> None:
        super().__init__(error.message)
        self.hint = error.hint

    def show(self, file: Any = None) -> None:  # noqa: ARG002
        """Print ``error:`` and, where there is one, ``hint:``."""
        say(f"error: {self.message}")
        if self.hint:
            say(f"hint: {self.hint}")


class _Group(click.Group):
    """A group of commands whose package errors become messages, not tracebacks."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was chosen."""
        try:
            return super().invoke(ctx)
        except PartitionerError as error:
            raise _Failure(error) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def main() -> None:
    """Cut a PyTorch model into a balanced pipeline that trains exactly like it.

    TARGET is model.py, model.py:attr or pkg.mod:attr, where attr is an nn.Module or a
    function that returns one. Without attr, the file's `model` or `build_model` is
    taken. `example_inputs` in the same file is one micro-batch for the forward;
    `loss_fn` and `example_labels`, where both are there, are priced as the loss.

    Or TARGET is a Hugging Face model: its folder, of which config.json is enough, that
    file itself, or its name where transformers has it cached. Nothing is downloaded.
    """
    degrade((sys.stdout, sys.stderr))


main.add_command(doctor)
main.add_command(export)
main.add_command(inspect)
main.add_command(import_)
main.add_command(trace)
main.add_command(replan)
main.add_command(tune)


@main.command()
@target_argument()
@click.option(
    "--stages", type=POSITIVE, required=True, metavar="N", help="Pipeline stages."
)
@planning
@JSON
def verify(*, target: Typed, as_json: bool, **options: Any) -> None:
    """Compare TARGET, cut into stages, with the original on its example inputs.

    Exits with 1 if any output, gradient or buffer differs by more than rounding.
    """
    from partitioner.report.verification import verification_report

    with (
        planned(target, options, weights=True) as plan,
        status("comparing with the original"),
    ):
        verification = plan.verify()
    show(verification.to_dict(), verification_report, as_json=as_json)
    if not verification.ok:
        sys.exit(1)


@main.command()
@target_argument(required=False)
@click.option(
    "--dtype",
    metavar="DTYPE",
    show_default="the model's",
    help="Dtype to run in, like bfloat16.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    show_default="cuda if there is one",
    help="Where to run.",
)
@click.option(
    "--compile", "compiled", is_flag=True, help="Time layers under torch.compile."
)
@file_option("-o", "--output", text="Write the timings of TARGET's parts to FILE.")
@file_option("--profile", text="Write a device profile of this machine to FILE.")
def measure(
    *,
    target: Typed | None,
    dtype: str | None,
    device: str | None,
    compiled: bool,
    output: Path | None,
    profile: Path | None,
) -> None:
    """Time TARGET's distinct operations and layers on this machine's device.

    `inspect --measurements FILE` plans with them on any machine.
    """
    if bool(target) != bool(output) or not (output or profile):
        message = "give TARGET with -o FILE, or --profile FILE, or all"
        raise click.UsageError(message)
    if target and output:
        with opened(target) as found:
            from partitioner.measuring import measure_model

            timings = measure_model(
                found.model,
                **found.arguments(),
                dtype=dtype,
                device=device,
                compiled=compiled,
            )
        timings.save(output)
        say(f"{timings.summary}, written to {output}")
    if profile:
        _write_profile(profile, device)


def _write_profile(path: Path, device: str | None) -> None:
    from partitioner.cost.measure.machine import machine_profile

    with status("timing typical kernels"):
        found = machine_profile(device)
    found.save(path)
    say(f"profile of {found.name} written to {path}")
