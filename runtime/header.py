"""Read the numbers that come with a boundary's values without waiting for the device.

Where a header says what the one before said, nothing has to be read: it is compared on
the device, and the answer is looked at before anything is made of the results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partitioner.errors import RuntimeGuardError

__all__ = ["Header", "SentHeader", "read_now"]


def read_now(packed: Tensor) -> list[int]:
    """Return the int64 numbers of a header's bytes; waits for their device."""
    numbers: list[int] = packed.clone().view(torch.int64).tolist()
    return numbers


class SentHeader:
    """The last header that was sent over a boundary, on its device.

    Most are equal to the one before; a copy to the device makes the host wait.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._packed: Tensor | None = None

    def packed(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return the bytes of int64 numbers on a device."""
        found = self._packed
        if found is None or found.device != device or numbers != self._numbers:
            mine = torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)
            found = self._packed = mine.to(device)
            self._numbers = list(numbers)
        return found


class Header:
    """What the headers of one boundary have said, for training and for evaluation.

    Reading a number that is on a device makes the host wait until everything launched
    before has run, so that it no longer launches ahead.
    """

    def __init__(self) -> None:
        self.repeats = False
        """Whether the headers of a batch all say the same: the engine knows."""
        self._known: dict[bool, tuple[Tensor, list[int]]] = {}
        self._differs: Tensor | None = None
        self._told: Tensor | None = None
        self._told_at: torch.cuda.Event | None = None

    def expect(self, *, repeats: bool, new: bool) -> None:
        """Begin a batch.

        Args:
            repeats: All its headers say the same.
            new: They may say something else than those of the batch before.
        """
        self.repeats = repeats
        self._differs = self._told = None
        if new:
            self._known.clear()

    def read(self, packed: Tensor, *, training: bool) -> list[int]:
        """Return the numbers of a header.

        Args:
            packed: Their bytes.
            training: Kernels may lay out values otherwise in evaluation.
        """
        if self.repeats and training in self._known:
            before, numbers = self._known[training]
            self._compare(packed, before)
            return numbers
        numbers = read_now(packed)
        self._known[training] = packed.clone(), numbers
        return numbers

    def check(self) -> None:
        """Look at what came of the comparisons.

        Waits for the last of them, not for what has been launched since.

        Raises:
            RuntimeGuardError: A header said something else than the ones before.
        """
        if self._told is None:
            return
        if self._told_at is not None:
            self._told_at.synchronize()
        differs = bool(self._told)
        self.expect(repeats=self.repeats, new=differs)
        if differs:
            raise RuntimeGuardError(
                "values of a stage boundary changed their sizes, or their order in "
                "memory, although no input of the model did; this step is lost",
                hint="pass dynamic_shape=True to plan.pipeline_module()",
            )

    def _compare(self, packed: Tensor, before: Tensor) -> None:
        differs = packed.ne(before).any()
        if self._differs is None:
            self._differs = differs
        else:
            self._differs.logical_or_(differs)
        if packed.device.type == "cpu":
            self._told = self._differs
            return
        if self._told_at is None:
            self._told_at = torch.cuda.Event()
            self._pinned = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._told = self._pinned.copy_(self._differs, non_blocking=True)
        self._told_at.record()
