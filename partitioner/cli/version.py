"""``--version``: what a report of a fault should name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from partitioner.version import __version__

__all__ = ["version_option"]

_PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "pytorch-lightning",
    "lightning",
    "pulp",
    "highspy",
    "networkx",
    "click",
    "rich",
)
"""Distributions on which results depend; PuLP brings the solver CBC with it."""


def _show(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001
    if not asked or context.resilient_parsing:
        return
    click.echo(f"partitioner {__version__}")
    click.echo(f"python {platform.python_version()} ({platform.platform()})")
    for name in _PACKAGES:
        click.echo(f"{name} {_installed(name)}")
    context.exit()


def _installed(name: str) -> str:
    """Return a version without importing anything, so that a broken package shows."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show,
    help="Show this version, Python's and those of torch, DeepSpeed and the solvers.",
)
