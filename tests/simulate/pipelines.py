"""Schedules of all kinds, and prices whose sums are exact in floating point."""

from __future__ import annotations

from hypothesis import strategies as st

from partitioner.simulate import (
    ChunkPrice,
    PipelinePrice,
    Schedule,
    gpipe,
    interleaved,
    zero_bubble,
)
from partitioner.simulate.from_deepspeed import dualpipev, eager, one_f_one_b


def equal(
    chunks: int,
    forward_s: float = 1.0,
    input_gradient_s: float = 1.0,
    weight_gradient_s: float = 1.0,
    *,
    hop_s: float = 0.0,
    in_flight_bytes: int = 1,
) -> PipelinePrice:
    """Equal chunks, equal boundaries."""
    chunk = ChunkPrice(
        forward_s=forward_s,
        input_gradient_s=input_gradient_s,
        weight_gradient_s=weight_gradient_s,
        in_flight_bytes=in_flight_bytes,
    )
    hops = (hop_s,) * (chunks - 1)
    return PipelinePrice(chunks=(chunk,) * chunks, activation_s=hops, gradient_s=hops)


@st.composite
def schedules(draw) -> Schedule:
    """Any schedule the package knows, small."""
    ranks = draw(st.integers(1, 4))
    micro_batches = draw(st.integers(1, 6))
    make = draw(
        st.sampled_from(
            [
                lambda: gpipe(ranks, micro_batches),
                lambda: one_f_one_b(ranks, micro_batches),
                lambda: one_f_one_b(ranks, micro_batches, blocking=False),
                lambda: eager(ranks, micro_batches),
                lambda: interleaved(ranks, ranks * micro_batches, 1),
                lambda: interleaved(ranks, ranks * micro_batches, 3),
                lambda: zero_bubble(ranks, micro_batches, full=False),
                lambda: zero_bubble(ranks, micro_batches, full=True),
                lambda: dualpipev(ranks, 2 * ranks + micro_batches),
            ]
        )
    )
    return make()


@st.composite
def prices(draw, chunks: int) -> PipelinePrice:
    """Whole seconds, zero included: every sum of them is exact."""
    seconds = st.integers(0, 9).map(float)
    hops = st.tuples(*[seconds] * (chunks - 1))
    chunk = st.builds(
        ChunkPrice,
        forward_s=seconds,
        input_gradient_s=seconds,
        weight_gradient_s=seconds,
        recompute_s=seconds,
        in_flight_bytes=st.integers(0, 9),
    )
    return PipelinePrice(
        chunks=draw(st.tuples(*[chunk] * chunks)),
        activation_s=draw(hops),
        gradient_s=draw(hops),
    )


@st.composite
def priced_schedules(draw) -> tuple[Schedule, PipelinePrice]:
    """A schedule and uneven prices for it."""
    schedule = draw(schedules())
    return schedule, draw(prices(schedule.chunks))
