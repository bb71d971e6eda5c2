"""Schedules that DeepSpeed does not have, as instruction lists.

Their messages travel by themselves (see :class:`Schedule`), as their papers assume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import OptionError
from partitioner.simulate.instructions import Compute, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.simulate.instructions import Pass

__all__ = ["gpipe", "interleaved", "zero_bubble"]


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards, the last micro-batch first.

    Source: Huang et al., *GPipe*, NeurIPS 2019, section 2.3 and figure 2c.
    """
    return Schedule(
        name="gpipe",
        micro_batches=micro_batches,
        rank_of=tuple(range(ranks)),
        lists=tuple(
            (
                *(Compute("forward", rank, m) for m in range(micro_batches)),
                *(Compute("backward", rank, m) for m in reversed(range(micro_batches))),
            )
            for rank in range(ranks)
        ),
    )


def interleaved(ranks: int, micro_batches: int, chunks_per_rank: int) -> Schedule:
    """1F1B over several chunks per rank: chunk c is on rank ``c mod ranks``.

    Micro-batches go through a rank's chunks in groups of ``ranks``.

    Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM*, SC 2021, section 2.2.2.

    Raises:
        OptionError: The micro-batches are no multiple of the ranks.
    """
    if micro_batches % ranks:
        raise OptionError(
            f"the interleaved schedule cannot run {micro_batches} micro-batches on"
            f" {ranks} ranks",
            hint="give a multiple of the ranks",
        )
    return Schedule(
        name="interleaved",
        micro_batches=micro_batches,
        rank_of=tuple(c % ranks for c in range(ranks * chunks_per_rank)),
        lists=tuple(
            tuple(_interleaved_rank(rank, ranks, micro_batches, chunks_per_rank))
            for rank in range(ranks)
        ),
    )


def _interleaved_rank(
    rank: int, ranks: int, micro_batches: int, chunks_per_rank: int
) -> Iterator[Compute]:
    total = micro_batches * chunks_per_rank
    warm_up = 2 * (ranks - rank - 1) + (chunks_per_rank - 1) * ranks

    def nth(number: int, *, forward: bool) -> Compute:
        group, within = divmod(number, ranks * chunks_per_rank)
        turn, member = divmod(within, ranks)
        local = turn if forward else chunks_per_rank - 1 - turn
        kind: Pass = "forward" if forward else "backward"
        return Compute(kind, local * ranks + rank, group * ranks + member)

    for number in range(total + warm_up):
        if number < total:
            yield nth(number, forward=True)
        if number >= warm_up:
            yield nth(number - warm_up, forward=False)


def zero_bubble(ranks: int, micro_batches: int, *, full: bool) -> Schedule:
    """1F1B with the weights' gradients put off to where a rank would be idle.

    ZB-H1 (``full=False``) holds as many micro-batches as 1F1B: rank r of p starts
    with p - r forwards and puts weight gradients off by r micro-batches. ZB-H2
    (``full=True``) starts with 2(p - r) - 1 forwards and puts them off by 2r, so that
    no rank idles between its first pass and its last.

    Source: Qi et al., *Zero Bubble Pipeline Parallelism*, ICLR 2024, sections 2.1
    and 2.2.
    """
    return Schedule(
        name="zb-h2" if full else "zb-h1",
        micro_batches=micro_batches,
        rank_of=tuple(range(ranks)),
        lists=tuple(
            tuple(_zero_bubble_rank(rank, ranks, micro_batches, 2 if full else 1))
            for rank in range(ranks)
        ),
    )


def _zero_bubble_rank(
    rank: int, ranks: int, micro_batches: int, depth: int
) -> Iterator[Compute]:
    ahead = depth * (ranks - rank - 1)
    put_off = depth * rank
    for number in range(micro_batches + ahead + put_off):
        done = number - ahead
        if number < micro_batches:
            yield Compute("forward", rank, number)
        if 0 <= done < micro_batches:
            yield Compute("input_gradient", rank, done)
        if 0 <= done - put_off < micro_batches:
            yield Compute("weight_gradient", rank, done - put_off)
