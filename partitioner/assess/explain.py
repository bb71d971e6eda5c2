"""Why a plan is no better: what limits it, and what other stages would give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from partitioner.assess.limits import Limit, find_limits
from partitioner.assess.variants import Solver, Variant
from partitioner.report import explanation_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.assess.case import Case

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What limits a plan, and what other numbers of stages would give."""

    step_s: float
    """By the formula that plans are made with."""
    bound_s: float
    proof: str
    even_s: float
    """Step time of equal stages that send nothing, with the plan's recomputation."""
    even_bubble_share: float
    """Share of that which is bubble."""
    limits: tuple[Limit, ...]
    """An indivisible unit first, then what costs most time."""
    variants: tuple[Variant, ...]
    """One stage less and one more."""

    def __str__(self) -> str:
        """Return the explanation as text."""
        return explanation_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for reports and files."""
        found = asdict(self)
        return {
            **found,
            "limits": list(found["limits"]),
            "variants": list(found["variants"]),
        }


def explain(case: Case, progress: Callable[[str], None] | None = None) -> Explanation:
    """Find out what limits a plan by solving its problem without it.

    Args:
        case: The plan.
        progress: Called with a sentence before each problem is solved.
    """
    solver = Solver(case=case, tell=progress or (lambda _: None))
    problem, found = case.problem, case.assignment
    work_s = sum(row.time_s - row.communication_s for row in case.score.stages)
    longest, total = problem.step_weights
    even_s = work_s * (longest / problem.ranks + total)
    limits = sorted(
        find_limits(case, solver),
        key=lambda limit: 0.0 if limit.step_s is None else limit.step_s,
    )
    near = (problem.stages - 1, problem.stages + 1)
    return Explanation(
        step_s=found.objective_s,
        bound_s=found.bound_s,
        proof=found.proof,
        even_s=even_s,
        even_bubble_share=_bubble_share(case, work_s, even_s),
        limits=tuple(limits),
        variants=tuple(solver.with_stages(stages) for stages in near if stages > 0),
    )


def _bubble_share(case: Case, work_s: float, step_s: float) -> float:
    busy_s = case.problem.micro_batches * work_s / case.problem.ranks
    return 1 - busy_s / step_s if step_s > 0 else 0.0
