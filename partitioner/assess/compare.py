"""A plan next to splits that other tools make, all priced and simulated alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from partitioner.assess.layers import whole_layers
from partitioner.assess.predict import predict
from partitioner.assess.rivals import RIVALS, stages_of_layers
from partitioner.report import comparison_text
from partitioner.solve import score
from partitioner.solve.recompute import recomputed_units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.assess.case import Case
    from partitioner.solve import Score

__all__ = ["Comparison", "Split", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to put the model on stages, scored."""

    name: str
    stage_of: tuple[int, ...]
    """Stage of each unit."""
    bottleneck_s: float
    """Time of the slowest rank for one micro-batch, communication included."""
    step_s: float
    """Step time by the formula that plans are made with."""
    simulated_s: float
    """Step time of the simulated schedule."""
    bubble_share: float
    """Share of the ranks' time that is idle in the simulation."""
    memory_bytes: int
    """Peak of the fullest rank."""
    recompute_s: float
    """Recomputation of one micro-batch, over all stages."""
    faults: tuple[str, ...]
    """What keeps it from being trained, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A plan and its rivals; the plan comes first."""

    splits: tuple[Split, ...]

    def __str__(self) -> str:
        """Return the table as text."""
        return comparison_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for reports and files."""
        return {
            "splits": [
                {
                    name: value
                    for name, value in asdict(split).items()
                    if name != "stage_of"
                }
                for split in self.splits
            ]
        }


def compare(case: Case) -> Comparison:
    """Score a plan and its rivals with the same prices and the same simulator.

    The rivals cut a list of whole layers (see ``layers.whole_layers``). Each recomputes
    the least that makes it fit, as the plan does, or every block where nothing fits.

    Args:
        case: The plan.
    """
    problem, mine = case.problem, case.assignment
    splits = [_scored("this plan", case, mine.stage_of, mine.recomputed, stock=False)]
    layers = whole_layers(case.costed, problem, case.units)
    for name, cut in RIVALS.items():
        stage_of = [0] * len(problem.units)
        for layer, stage in zip(
            layers, stages_of_layers(layers, problem.stages, cut), strict=True
        ):
            for unit in layer.units:
                stage_of[unit] = stage
        recomputed = recomputed_units(problem, stage_of) or tuple(
            unit.block >= 0 and problem.checkpointing != "none"
            for unit in problem.units
        )
        splits.append(_scored(name, case, stage_of, recomputed, stock=True))
    return Comparison(splits=tuple(splits))


def _scored(
    name: str,
    case: Case,
    stage_of: Sequence[int],
    recomputed: Sequence[bool],
    *,
    stock: bool,
) -> Split:
    """Score one split; ``stock``: DeepSpeed's own module would train it."""
    problem = case.problem
    found = score(problem, stage_of, recomputed)
    simulated = predict(problem, stage_of, recomputed, case.options.schedule)
    return Split(
        name=name,
        stage_of=tuple(stage_of),
        bottleneck_s=max(rank.time_s for rank in found.ranks),
        step_s=found.step_s,
        simulated_s=simulated.step_s,
        bubble_share=simulated.bubble_share,
        memory_bytes=max(rank.memory_bytes for rank in found.ranks),
        recompute_s=sum(stage.recompute_s for stage in found.stages),
        faults=tuple(_faults(case, stage_of, found, stock=stock)),
    )


def _faults(
    case: Case, stage_of: Sequence[int], found: Score, *, stock: bool
) -> Iterator[str]:
    """Yield what keeps a split from being trained."""
    problem = case.problem
    empty = set(range(problem.stages)) - set(stage_of)
    trained = {
        stage
        for unit, stage in zip(problem.units, stage_of, strict=True)
        if unit.trainable
    }
    frozen = set(range(problem.stages)) - empty - trained
    if empty:
        yield f"nothing on {_numbered('stage', sorted(empty))}"
    if frozen and stock:
        yield f"nothing to train on {_numbered('stage', sorted(frozen))}"
    over = [
        rank
        for rank, (row, limit) in enumerate(
            zip(found.ranks, problem.limits, strict=True)
        )
        if limit is not None and row.memory_bytes > limit
    ]
    if over:
        yield f"out of memory on {_numbered(case.rank_name, over)}"


def _numbered(kind: str, numbers: Sequence[int]) -> str:
    plural = "s" if len(numbers) > 1 else ""
    return f"{kind}{plural} {', '.join(map(str, numbers))}"
