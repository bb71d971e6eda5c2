"""Which samples make which micro-batch: by seed and epoch, on every replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Draw", "Order", "Place"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of the data a rank reads.

    Args:
        replica: Its data-parallel replica.
        replicas: Their number.
        reads: It is on the first or the last stage.
    """

    replica: int = 0
    replicas: int = 1
    reads: bool = True


@dataclass(frozen=True, slots=True)
class Draw:
    """One micro-batch: its samples, and the seed of its random numbers."""

    seed: int
    indices: list[int]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which samples make which micro-batch."""

    samples: int
    batch_size: int
    step: int
    seed: int
    shuffle: bool
    drop_last: bool
    place: Place

    @property
    def samples_at_once(self) -> int:
        """Samples of one micro-batch of every replica."""
        return self.batch_size * self.place.replicas

    def length(self) -> int:
        """Return the micro-batches of an epoch on one replica, whole steps."""
        whole = self.samples_at_once * self.step
        steps = self.samples // whole if self.drop_last else -(-self.samples // whole)
        if steps == 0:
            raise OptionError(
                f"the dataset has {self.samples} samples; one step takes {whole} "
                f"({self.batch_size} x {self.step} micro-batches x "
                f"{self.place.replicas} replicas)",
                hint="use a smaller batch, or drop_last=False",
            )
        return steps * self.step

    def signature(self) -> dict[str, Any]:
        """Return what decides the order."""
        return {"samples": self.samples, "seed": self.seed, "shuffle": self.shuffle}

    def draws(self, epoch: int, start: int) -> Iterator[Draw]:
        """Yield this replica's micro-batches of an epoch from number ``start`` on."""
        numbers = np.random.SeedSequence([self.seed, epoch])
        order = np.arange(self.samples)
        if self.shuffle:
            np.random.default_rng(numbers).shuffle(order)
        for index in range(start, self.length()):
            first = (index * self.place.replicas + self.place.replica) * self.batch_size
            places = np.arange(first, first + self.batch_size) % self.samples
            seed = np.random.SeedSequence([self.seed, epoch, first + 1])
            yield Draw(int(seed.generate_state(1)[0]), order[places].tolist())
