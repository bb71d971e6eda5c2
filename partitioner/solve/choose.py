"""Narrows the best assignment and the bound on all others until the gap is closed."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partitioner.errors import OptionError, PartitionerError
from partitioner.solve.backends import Outcome, require_solver, run_solver
from partitioner.solve.candidates import Candidate, Laid, candidate_of, slice_orders
from partitioner.solve.check import check
from partitioner.solve.contract import contract, contract_dear
from partitioner.solve.feasible import require_stages
from partitioner.solve.memory_advice import memory_error
from partitioner.solve.problem import Assignment
from partitioner.solve.program import Program
from partitioner.solve.windows import reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

__all__ = ["solve"]

TOLERANCE = 1e-6
"""Relative rounding of the solvers: a gap of zero is proven up to this."""
FIRST_PLAN_SHARE = 0.25
"""Share of the time limit for the program to find a plan where slicing found none."""
MOST_BINARIES = 12_000
"""Programs with more binary variables are not written: they would not end in time."""
MOST_BINARIES_CHOOSING = 1_500
"""The same where recomputation is chosen: above it, only the relaxation is solved."""
BINARIES_PER_S = 250
"""Fewer are allowed when little time is left: writing the program takes time, too."""


def solve(
    problem: Problem,
    *,
    solver: str = "cbc",
    gap: float = 0.01,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Assignment:
    """Assign every unit to a stage, and choose what to recompute.

    Args:
        problem: Units, values, stages and limits.
        solver: "cbc" (comes with PuLP) or "highs" (needs highspy).
        gap: Relative distance to the bound at which the search may stop, 0 to 1.
        time_limit_s: Wall-clock seconds; the best assignment so far is returned.
        progress: Called with a sentence at each step.

    Returns:
        The best assignment found, with a bound on all others and what proved it.

    Raises:
        OptionError: An argument is out of range, or a pin is impossible.
        TooManyStagesError: There are more stages than the model can be cut into.
        MemoryLimitError: No plan that was found fits the memory limit.
    """
    started = time.monotonic()
    _require_options(problem, gap, time_limit_s)
    require_solver(solver)
    search = _Search(
        problem=problem,
        solver=solver,
        gap=gap,
        started=started,
        deadline=started + time_limit_s,
        tell=progress or (lambda _: None),
    )
    best = search.run()
    assignment = Assignment(
        stage_of=best.stage_of,
        recomputed=best.recomputed,
        objective_s=best.step_s,
        bound_s=min(search.bound_s, best.step_s),
        proof=search.proof,
        solver=best.source,
        solve_s=time.monotonic() - started,
        warnings=tuple(search.warnings),
    )
    faults = check(problem, assignment)
    if faults:
        raise PartitionerError(
            "the solver's own answer broke its rules: " + "; ".join(faults),
            hint="This is a fault of the partitioner: please report it.",
        )
    return assignment


def _require_options(problem: Problem, gap: float, time_limit_s: float) -> None:
    faults = (
        (problem.stages < 1, f"stages={problem.stages} is below 1"),
        (
            problem.micro_batches < 1,
            f"micro_batches={problem.micro_batches} is below 1",
        ),
        (not 0 <= gap < 1, f"gap={gap} is not in [0, 1)"),
        (not time_limit_s > 0, f"time_limit_s={time_limit_s} is not above 0"),
        (
            len(problem.in_flight) != problem.stages,
            f"in_flight has {len(problem.in_flight)} entries, not {problem.stages}",
        ),
        (not problem.units, "the problem has no units"),
    )
    for wrong, message in faults:
        if wrong:
            raise OptionError(message, hint="Change the argument that is named.")


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one search: best assignment, bound, and what proved it."""

    problem: Problem
    solver: str
    gap: float
    started: float
    deadline: float
    tell: Callable[[str], None]
    bound_s: float = 0.0
    proof: str = ""
    warnings: list[str] = field(default_factory=list)

    def run(self) -> Candidate:
        """Return the best assignment; leave the bound and its proof behind."""
        groups = contract(require_stages(self.problem)[0])
        laid = Laid(groups)
        self.tell(f"{len(self.problem.units)} units in {len(groups)} groups")
        self._bound_by_work(groups)
        best = self._first(laid)
        self.tell(f"{best.source}: {best.step_s:.6g} s per step")
        return self._narrow(laid, best)

    # ------------------------------------------------------------ first assignment

    def _first(self, laid: Laid) -> Candidate:
        """Slice the orders; recompute only if that makes the step shorter."""
        best = slice_orders(laid, choose=False, deadline=self.deadline)
        if self._may_choose and (best is None or not self._closed(best)):
            self.tell("the memory limit binds: choosing what to recompute")
            chosen = slice_orders(laid, choose=True, deadline=self.deadline)
            chosen = chosen or self._recompute_everything()
            if best is None or (chosen is not None and chosen.step_s < best.step_s):
                best = chosen
        if best is None:
            best = self._first_by_program(laid)
        if best is None:
            raise memory_error(self.problem)
        return best

    @property
    def _may_choose(self) -> bool:
        problem = self.problem
        limited = problem.memory_limit_bytes is not None
        return limited and problem.checkpointing == "auto"

    def _recompute_everything(self) -> Candidate | None:
        """Return the best slicing with all blocks recomputed, which needs least."""
        everything = dataclasses.replace(self.problem, checkpointing="all")
        laid = Laid(contract(require_stages(everything)[0]))
        full = slice_orders(laid, choose=False, deadline=self.deadline)
        if full is None:
            return None
        return candidate_of(self.problem, full.stage_of, full.source)

    def _first_by_program(self, laid: Laid) -> Candidate | None:
        """Ask the program, unless even all stages together are too small."""
        problem, limit = self.problem, self.problem.memory_limit_bytes or 0
        kept = problem.checkpointing == "none"
        fewest = min(problem.in_flight)
        needed = sum(
            unit.static_bytes
            + (fewest * unit.saved_bytes if kept or unit.block < 0 else 0)
            for unit in problem.units
        )
        if needed > limit * problem.stages:
            return None
        self.tell("no slicing fits the memory: asking the program")
        limit_s = FIRST_PLAN_SHARE * (self.deadline - time.monotonic())
        return self._ask(laid, laid.groups, None, limit_s)[0]

    # ------------------------------------------------------------ bound

    def _raise_bound(self, bound_s: float, rule: str) -> None:
        if bound_s > self.bound_s or not self.proof:
            self.bound_s = bound_s
            self.proof = rule

    def _bound_by_work(self, groups: Groups) -> None:
        longest_s = reach(groups).least_longest_s()
        others = self.problem.micro_batches - 1
        self._raise_bound(
            float(groups.work_s.sum()) + others * longest_s,
            "total work, and the work that must come before and after each unit",
        )

    def _closed(self, best: Candidate) -> bool:
        return best.step_s - self.bound_s <= max(self.gap, 2 * TOLERANCE) * best.step_s

    def _narrow(self, laid: Laid, best: Candidate) -> Candidate:
        """Look for assignments below a target until one of them is proven absent."""
        while not self._closed(best):
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                self.warnings.append("the time limit struck before the gap was closed")
                break
            share = max(self.gap * (1 - TOLERANCE), TOLERANCE)
            target_s = best.step_s * (1 - share)
            self.tell(f"is there a step below {target_s:.6g} s?")
            better, absent = self._below(laid, target_s, left_s)
            if better is not None and better.step_s < best.step_s:
                best = better
                self.tell(f"{better.source}: {better.step_s:.6g} s per step")
            elif not absent:
                break
        return best

    def _below(
        self, laid: Laid, target_s: float, left_s: float
    ) -> tuple[Candidate | None, bool]:
        """Return an assignment below a target, or whether it is proven absent."""
        groups = contract_dear(laid.groups, target_s)
        windows = reach(groups).windows(_longest_s(groups, target_s))
        if windows.empty or sum(groups.trainable) < self.problem.stages:
            self._raise_bound(target_s, "stage windows leave some unit no stage")
            return None, True
        found, outcome = self._ask(laid, groups, target_s, left_s)
        if outcome.status == "infeasible":
            self._raise_bound(
                target_s, f"integer program without solution ({self.solver})"
            )
            return None, True
        return found, False

    def _ask(
        self, laid: Laid, groups: Groups, target_s: float | None, limit_s: float
    ) -> tuple[Candidate | None, Outcome]:
        """Write and run the program."""
        started = time.monotonic()
        longest_s = math.inf if target_s is None else _longest_s(groups, target_s)
        windows = reach(groups).windows(longest_s)
        size = int((windows.latest - windows.earliest).sum())
        if size > min(MOST_BINARIES, BINARIES_PER_S * limit_s):
            reason = f"the program is too large ({size} binary variables)"
            self.warnings.append(f"{self.solver}: not asked, {reason}")
            return None, Outcome(status="stopped", reason=reason)
        program = Program(
            groups, windows, laid.reads, target_s=target_s, longest_s=longest_s
        )
        relax = self._may_choose and size > MOST_BINARIES_CHOOSING
        outcome = run_solver(
            program.model,
            solver=self.solver,
            gap=self.gap / 2,
            time_limit_s=limit_s - (time.monotonic() - started),
            relax=relax,
        )
        self._take_bound(program, outcome, target_s, relax=relax)
        if outcome.status in ("failed", "stopped"):
            self.warnings.append(f"{self.solver}: {outcome.reason}")
        elif relax and outcome.values:
            self.warnings.append(
                f"{self.solver}: only the relaxation was solved, as {size} binary"
                " variables are too many where recomputation is chosen"
            )
        if relax or not outcome.values:
            return None, outcome
        stage_of = groups.stage_of_units(program.stage_of_groups(outcome.values))
        return candidate_of(self.problem, stage_of, self.solver), outcome

    def _take_bound(
        self,
        program: Program,
        outcome: Outcome,
        target_s: float | None,
        *,
        relax: bool,
    ) -> None:
        """Take over what the solver proved: for steps below the target, or for all."""
        above_s = math.inf if target_s is None else target_s
        rule = f"relaxation of the integer program ({self.solver})"
        bound_s = outcome.bound * program.scale_s
        if outcome.status == "optimal":
            bound_s = program.objective_s(outcome.values)
            if not relax:
                rule = f"integer program solved ({self.solver})"
                bound_s *= 1 - self.gap / 2
        if outcome.status != "failed" and math.isfinite(bound_s):
            self._raise_bound(min(bound_s * (1 - TOLERANCE), above_s), rule)


def _longest_s(groups: Groups, target_s: float) -> float:
    """Return the longest stage time that a step below the target allows."""
    others = groups.problem.micro_batches - 1
    return (target_s - float(groups.work_s.sum())) / others if others else target_s
