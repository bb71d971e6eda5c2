"""Data for a pipeline: the same micro-batches at both ends, others on each replica."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from partitioner.errors import OptionError
from partitioner.runtime.data_order import Draw, Order, Place

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batches", "PipelineLoader", "Place"]


class PipelineLoader:
    """Yields the micro-batches of one epoch after the other, in an order of its own.

    The order is a permutation of the dataset by seed and epoch. A micro-batch is made
    under random numbers of its own (torch's, NumPy's, Python's), so that a collator or
    a dataset that draws some (masks, augmentation) gives the first and the last stage
    the same, whatever the number of workers, and again after a resume.

    Iterating runs through one epoch, the next time through the next. An epoch is a
    multiple of ``step`` micro-batches on each replica; what is left over is dropped. On
    a stage that reads no data the iterator yields None as often.

    Args:
        dataset: Has ``__len__`` and ``__getitem__`` (or ``__getitems__``).
        place: Which of the data this rank reads.
        batch_size: Samples of a micro-batch.
        step: Micro-batches that the engine takes at a time.
        seed: Of the order and of every micro-batch's random numbers.
        shuffle: Another order in every epoch; else the dataset's own.
        drop_last: Drop what does not fill ``step`` micro-batches of every replica; else
            samples from the beginning fill up the last, and none is left out.
        collate_fn: Makes a micro-batch of a list of samples.
        **loader_kwargs: For torch's ``DataLoader``: ``num_workers``, ``pin_memory``, …

    Raises:
        OptionError: The dataset is too short or has no length, or an argument is the
            loader's own.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        place: Place,
        batch_size: int,
        step: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **loader_kwargs: Any,
    ) -> None:
        _check_dataset(dataset)
        _check_arguments(loader_kwargs, batch_size=batch_size, step=step)
        self._order = Order(
            samples=len(dataset),
            batch_size=batch_size,
            step=step,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            place=place,
        )
        self._length = self._order.length()
        self._epoch, self._done = 0, 0
        self._loader: DataLoader[Any] | None = None
        self._drawing = _Drawing()
        if place.reads:
            self._loader = DataLoader(
                _Drawn(dataset, collate_fn),
                batch_sampler=self._drawing,
                collate_fn=_as_it_is,
                # Else torch would draw from the generator that dropout draws from.
                generator=torch.Generator(),
                **_defaults(loader_kwargs, step),
            )

    def __len__(self) -> int:
        """Return the number of micro-batches of one epoch on each replica."""
        return self._length

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or is read next."""
        return self._epoch

    def __iter__(self) -> Batches:
        """Return an iterator over the micro-batches that this epoch still has."""
        if self._done == len(self):
            self._epoch, self._done = self._epoch + 1, 0
        if self._loader is None:
            return Batches(self, iter([None] * (len(self) - self._done)))
        self._drawing.draws = self._order.draws(self._epoch, self._done)
        return Batches(self, iter(self._loader))

    def handed_out(self) -> None:
        """Count one micro-batch of this epoch."""
        self._done += 1

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, for a checkpoint.

        Counted in what has been handed out, not in what workers have prepared.
        """
        order = self._order
        return {
            "epoch": self._epoch,
            "samples": self._done * order.samples_at_once,
            "order": order.signature(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader of the same dataset has been.

        The number of replicas and the size of a micro-batch may be others if the
        samples that have been read are whole micro-batches of theirs too.

        Raises:
            OptionError: The order is another, or the place is none of this loader's.
        """
        order = self._order
        if state["order"] != order.signature():
            raise OptionError(
                f"the data's order was {state['order']}; this loader's is "
                f"{order.signature()}",
                hint="make the loader as it was made before",
            )
        done, rest = divmod(state["samples"], order.samples_at_once)
        if rest or done % order.step or done > len(self):
            raise OptionError(
                f"{state['samples']} samples of epoch {state['epoch']} have been read, "
                f"which are no whole steps of {order.samples_at_once * order.step}",
                hint="resume with the batch size and the replicas of before, or at the "
                "end of an epoch",
            )
        self._epoch, self._done = state["epoch"], done


class Batches(Iterator[Any]):
    """One epoch's micro-batches, or what is left of them.

    Args:
        loader: Is told of each that is handed out.
        source: Yields them.
    """

    def __init__(self, loader: PipelineLoader, source: Iterator[Any]) -> None:
        self._loader = loader
        self._source = source

    def __next__(self) -> Any:
        """Return the next micro-batch; None on a stage that reads no data."""
        batch = next(self._source)
        self._loader.handed_out()
        return batch


class _Drawing:
    """The batch sampler of torch's loader; its draws are set before each epoch."""

    def __init__(self) -> None:
        self.draws: Iterator[Draw] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.draws


class _Drawn(Dataset[Any]):
    """Makes whole micro-batches of the user's dataset, in a worker or here."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate_fn

    def __getitems__(self, draw: Draw) -> Any:
        """Return one micro-batch."""
        with _seeded(draw.seed):
            if hasattr(self._dataset, "__getitems__"):
                samples = self._dataset.__getitems__(draw.indices)
            else:
                samples = [self._dataset[index] for index in draw.indices]
            return self._collate(samples)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from this seed inside, and go on outside as if nothing had been drawn."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _as_it_is(batch: Any) -> Any:
    return batch


def _defaults(loader_kwargs: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return torch's arguments: pinned where there is a device, workers that stay."""
    workers = loader_kwargs.get("num_workers", 0)
    settings: dict[str, Any] = {"pin_memory": torch.cuda.is_available()}
    if workers:
        # The engine takes a whole step at once: it should be ready by then.
        ahead = max(2, -(-step // workers))
        settings |= {"persistent_workers": True, "prefetch_factor": ahead}
    return {**settings, **loader_kwargs}


def _check_dataset(dataset: Any) -> None:
    for name in ("__len__", "__getitem__"):
        if not hasattr(dataset, name):
            raise OptionError(
                f"the dataset ({type(dataset).__name__}) has no {name}: its samples "
                "cannot be shared out",
                hint="give train_batch an iterator of your own, which yields the same "
                "on the first and the last stage, and others on each replica",
            )


def _check_arguments(loader_kwargs: Mapping[str, Any], **counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{name} is {value}; at least 1 is needed")
    own = {"sampler", "batch_sampler", "generator"} & set(loader_kwargs)
    if own:
        raise OptionError(
            f"{', '.join(sorted(own))}: both ends of the pipeline need one order",
            hint="choose it with seed= and shuffle=",
        )
