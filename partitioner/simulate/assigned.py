"""Assignment → what its stages cost the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.simulate.price import ChunkPrice, PipelinePrice
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve import Score
    from partitioner.solve.problem import Problem

__all__ = ["price_assignment"]

WEIGHT_SHARE = 0.5
"""Part of a trainable unit's backward that its weights' gradient takes: in a matrix
product or a convolution both gradients have the FLOPs of the forward (Qi et al., *Zero
Bubble Pipeline Parallelism*, ICLR 2024, section 2)."""


def price_assignment(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> PipelinePrice:
    """Price every stage as a chunk, with the boundaries between them.

    Args:
        problem: Units and values.
        stage_of: Stage of each unit.
        recomputed: Whether each unit is recomputed in backward.
    """
    found = score(problem, stage_of, recomputed)
    weights_s = _weights_s(problem, stage_of, found)
    activation_s = [0.0] * (problem.stages - 1)
    gradient_s = [0.0] * (problem.stages - 1)
    for value in problem.values:
        first = stage_of[value.producer]
        last = max((stage_of[reader] for reader in value.consumers), default=first)
        for boundary in range(first, last):
            far = problem.is_far(boundary + 1)
            back_s = value.gradient_s(far=far)
            activation_s[boundary] += value.crossing_s(far=far) - back_s
            gradient_s[boundary] += back_s
    return PipelinePrice(
        chunks=tuple(
            ChunkPrice(
                forward_s=row.forward_s,
                input_gradient_s=row.backward_s - weight_s,
                weight_gradient_s=weight_s,
                recompute_s=row.recompute_s,
                in_flight_bytes=row.in_flight_bytes // held,
            )
            for row, weight_s, held in zip(
                found.stages, weights_s, problem.in_flight, strict=True
            )
        ),
        activation_s=tuple(activation_s),
        gradient_s=tuple(gradient_s),
    )


def _weights_s(problem: Problem, stage_of: Sequence[int], found: Score) -> list[float]:
    """Return what of each stage's backward its weight gradients are."""
    weights_s, whole_s = [0.0] * problem.stages, [0.0] * problem.stages
    for unit, stage in zip(problem.units, stage_of, strict=True):
        whole_s[stage] += unit.backward_s
        if unit.trainable:
            weights_s[stage] += WEIGHT_SHARE * unit.backward_s
    return [
        row.backward_s * mine_s / all_s if all_s else 0.0
        for row, mine_s, all_s in zip(found.stages, weights_s, whole_s, strict=True)
    ]
