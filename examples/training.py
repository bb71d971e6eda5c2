"""What the training examples share: their options, their loop, their end."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.utils import RepeatingLoader

if TYPE_CHECKING:
    from collections.abc import Iterator


def parser(description: str | None, *, steps: int = 20) -> argparse.ArgumentParser:
    """Return a parser with the options that all of them have.

    Args:
        description: The script's docstring.
        steps: How many are trained if nothing is said.
    """
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--steps", type=int, default=steps, help="of all runs together")
    found.add_argument("--stages", type=int, default=2)
    found.add_argument("--local_rank", help="given by the deepspeed launcher")
    return found


def steps(engine: Any, batches: Iterator[Any], until: int) -> Iterator[float]:
    """Train to some step, and yield each loss; the first process prints it.

    Args:
        engine: Of ``plan.initialize``; one that was loaded from a checkpoint goes on.
        batches: Micro-batches.
        until: The number of the last step, counted from 1.
    """
    while engine.global_steps < until:
        loss = engine.train_batch(batches).item()
        if engine.global_rank == 0:
            print(f"step {engine.global_steps}: loss {loss:.4f}")
        yield loss


def train(engine: Any, dataset: Any, until: int, **loading: Any) -> None:
    """Train on a dataset, over and over, to some step, and end the processes' group.

    Args:
        engine: Of ``plan.initialize``.
        dataset: Samples; both ends of the pipeline read the same.
        until: The number of the last step.
        **loading: Options of ``engine.dataloader``.
    """
    batches = RepeatingLoader(engine.dataloader(dataset, seed=0, **loading))
    for _ in steps(engine, batches, until):
        pass
    leave(engine)


def leave(engine: Any) -> None:
    """Let go of the engine, then of the other processes."""
    engine.destroy()
    torch.distributed.destroy_process_group()
