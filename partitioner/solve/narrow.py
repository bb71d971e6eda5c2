"""Narrows the best assignment and the bound on all others until the gap is closed."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partitioner.solve.ask import TOLERANCE, ask_program
from partitioner.solve.bounds import least_objective, longest_below
from partitioner.solve.candidates import Candidate, Laid, candidate_of, slice_orders
from partitioner.solve.check import rule_faults
from partitioner.solve.coarse import solve_by_cores
from partitioner.solve.contract import contract, contract_dear
from partitioner.solve.feasible import require_stages
from partitioner.solve.ideals import solve_by_ideals
from partitioner.solve.memory_advice import memory_error
from partitioner.solve.problem import Assignment
from partitioner.solve.recompute import forced
from partitioner.solve.windows import reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.solve.ask import Settings
    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

__all__ = ["Search"]

FREE_SHARE = 0.4
"""Share of the time limit for the problem without its memory limit."""
SLICE_SHARE = 0.4
"""Share of the time limit for slicing orders, once there is a plan."""
FIRST_PLAN_SHARE = 0.25
"""Share of the time limit for the program to find a plan where slicing found none."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search: its problem, the bound so far, and what proved it."""

    problem: Problem
    settings: Settings
    bound_s: float = 0.0
    proof: str = ""
    relaxed: bool = False
    """Whether the cuts between cores have been looked at."""
    warnings: list[str] = field(default_factory=list)

    def run(self) -> Candidate:
        """Return the best assignment; leave the bound and its proof behind.

        Memory comes second: if the best plan without a limit fits as it is, nothing
        needs to be recomputed. If not, its objective still bounds all others.

        Raises:
            InfeasibleError: Nothing obeys pins, constraints and memory.
            OptionError: A pin is impossible.
        """
        laid = Laid(contract(require_stages(self.problem)[0]))
        self._tell(f"{len(self.problem.units)} units in {len(laid.groups)} groups")
        if not self.problem.limited:
            self._bound_by_work(laid.groups)
            return self._narrow(laid, self._first(laid, []))
        free, best = self._without_limit()
        if free is not None and self._is_plain(free) and (best or self._closed(free)):
            return free
        self.warnings.clear()
        self._tell("the memory limit binds")
        return self._narrow(laid, self._first(laid, [free] if free else []))

    def _without_limit(self) -> tuple[Candidate | None, bool]:
        """Solve without a memory limit; return that plan, made to fit if it can be.

        All the time goes into that if the first plan fits already, else a share. Also
        says whether the plan is the best one itself, not the first or a slower one.
        """
        search = Search(problem=self.problem.without_limits(), settings=self.settings)
        laid = Laid(contract(require_stages(search.problem)[0]))
        search._bound_by_work(laid.groups)
        best = search._first(laid, [])
        fitted = candidate_of(self.problem, best.stage_of, best.source)
        if fitted is None or not self._is_plain(fitted):
            now = time.monotonic()
            deadline = now + FREE_SHARE * (self.settings.deadline - now)
            search.settings = dataclasses.replace(self.settings, deadline=deadline)
        best = search._narrow(laid, best)
        self.bound_s, self.proof = search.bound_s, search.proof
        self.warnings += search.warnings
        better = candidate_of(self.problem, best.stage_of, best.source)
        if better is not None and self._is_plain(better):
            return better, True
        return fitted if better is None else better, False

    def _is_plain(self, candidate: Candidate) -> bool:
        """Whether nothing is recomputed by choice."""
        return candidate.recomputed == forced(self.problem)

    def _tell(self, sentence: str) -> None:
        self.settings.tell(sentence)

    # ------------------------------------------------------------ first assignment

    def _first(self, laid: Laid, known: list[Candidate]) -> Candidate:
        """Slice the orders; recompute only if nothing else is as fast."""
        deadline, now = self.settings.deadline, time.monotonic()
        plain = slice_orders(
            laid,
            choose=False,
            deadline=now + SLICE_SHARE * (deadline - now),
            enough_s=self.bound_s / (1 - self.settings.gap),
        )
        found = [plain, *known] if plain else known
        if self._may_choose and not (plain and self._closed(plain)):
            self._tell("choosing what to recompute")
            chosen = slice_orders(laid, choose=True, deadline=deadline)
            found += [chosen] if chosen else list(self._recompute_everything())
        if not found:
            found += self._first_by_program(laid)
        if not found:
            raise memory_error(self.problem)
        best = min(found, key=lambda candidate: candidate.objective_s)
        self._tell(f"{best.source}: {best.objective_s:.6g} s")
        return best

    @property
    def _may_choose(self) -> bool:
        return self.problem.limited and self.problem.checkpointing == "auto"

    def _recompute_everything(self) -> Iterator[Candidate]:
        """Yield the best slicing with all blocks recomputed, which needs least."""
        everything = dataclasses.replace(self.problem, checkpointing="all")
        laid = Laid(contract(require_stages(everything)[0]))
        full = slice_orders(laid, choose=False, deadline=self.settings.deadline)
        if full is not None:
            fitted = candidate_of(self.problem, full.stage_of, full.source)
            if fitted is not None:
                yield fitted

    def _first_by_program(self, laid: Laid) -> Iterator[Candidate]:
        """Ask the program, unless even all ranks together are too small."""
        problem = self.problem
        kept = problem.checkpointing == "none"
        fewest = min(problem.in_flight)
        needed = sum(
            unit.static_bytes
            + (fewest * unit.saved_bytes if kept or unit.block < 0 else 0)
            for unit in problem.units
        )
        if all(limit is not None for limit in problem.limits) and needed > sum(
            limit or 0 for limit in problem.limits
        ):
            return
        self._tell("no slicing is legal: asking the program")
        limit_s = FIRST_PLAN_SHARE * (self.settings.deadline - time.monotonic())
        found = self._ask(laid, laid.groups, None, limit_s)[0]
        yield from [found] if found else []

    # ------------------------------------------------------------ bound

    def _raise_bound(self, bound_s: float, rule: str) -> None:
        if bound_s > self.bound_s or not self.proof:
            self.bound_s = bound_s
            self.proof = rule

    def _bound_by_work(self, groups: Groups) -> None:
        self._raise_bound(
            least_objective(groups, reach(groups).least_longest_s()),
            "total work, and the work that must come before and after each unit",
        )

    def _closed(self, best: Candidate) -> bool:
        share = max(self.settings.gap, 2 * TOLERANCE)
        return best.objective_s - self.bound_s <= share * best.objective_s

    def _narrow(self, laid: Laid, best: Candidate) -> Candidate:
        """Look for assignments below a target until one of them is proven absent."""
        while not self._closed(best):
            if time.monotonic() >= self.settings.deadline:
                self.warnings.append("the time limit struck before the gap was closed")
                break
            better, absent = self._below(laid, best.objective_s)
            if better is not None and better.objective_s < best.objective_s:
                best = better
                self._tell(f"{better.source}: {better.objective_s:.6g} s")
            elif not absent:
                break
        return best

    def _below(self, laid: Laid, best_s: float) -> tuple[Candidate | None, bool]:
        """Return an assignment that is better, or whether it is proven absent."""
        share = max(self.settings.gap * (1 - TOLERANCE), TOLERANCE)
        target_s = best_s * (1 - share)
        self._tell(f"is there a plan below {target_s:.6g} s?")
        groups = contract_dear(laid.groups, target_s)
        windows = reach(groups).windows(longest_below(groups, target_s))
        if windows.empty or sum(groups.weighted) < self.problem.stages:
            self._raise_bound(target_s, "stage windows leave some unit no stage")
            return None, True
        relaxed = self._below_by_cores(laid, best_s)
        if relaxed is not None:
            return relaxed
        if not self.settings.gap:  # let the best itself be found: its bound is exact
            target_s = best_s * (1 + 1e-8)
        exact = solve_by_ideals(
            contract_dear(laid.groups, target_s), target_s, self.settings.deadline
        )
        if exact is None:
            left_s = self.settings.deadline - time.monotonic()
            return self._ask(laid, groups, best_s * (1 - share), left_s)
        self._raise_bound(exact.bound_s, exact.rule)
        if exact.stage_of is None:
            return None, exact.bound_s >= best_s * (1 - share) * (1 - TOLERANCE)
        return candidate_of(self.problem, exact.stage_of, "order-dp"), False

    def _below_by_cores(
        self, laid: Laid, best_s: float
    ) -> tuple[Candidate | None, bool] | None:
        """As `_below`, by a relaxation; None if it does not help."""
        if self.relaxed or not self.settings.gap:  # it is never exact
            return None
        self.relaxed = True
        relaxed = solve_by_cores(
            laid.groups,
            best_s * (1 + TOLERANCE),
            self.settings.gap,
            self.settings.deadline,
        )
        if relaxed is None:
            return None
        self._raise_bound(relaxed.bound_s, relaxed.rule)
        found = None
        if relaxed.stage_of is not None and self._is_sound(relaxed.stage_of):
            found = candidate_of(self.problem, relaxed.stage_of, "order-dp")
        if found is not None and found.objective_s < best_s:
            return found, False
        return (
            (None, True) if self.bound_s >= best_s * (1 - self.settings.gap) else None
        )

    def _is_sound(self, stage_of: Sequence[int]) -> bool:
        """Whether a plan from a relaxation obeys what the relaxation left out."""
        blank = Assignment(
            stage_of=tuple(stage_of),
            recomputed=forced(self.problem),
            objective_s=0.0,
            bound_s=0.0,
            proof="",
            solver="",
            solve_s=0.0,
        )
        return not rule_faults(self.problem, blank)

    def _ask(
        self, laid: Laid, groups: Groups, target_s: float | None, limit_s: float
    ) -> tuple[Candidate | None, bool]:
        """As `_below`, by the integer program."""
        answer = ask_program(groups, laid.reads, target_s, limit_s, self.settings)
        if answer.rule:
            self._raise_bound(answer.bound_s, answer.rule)
        if answer.warning:
            self.warnings.append(answer.warning)
        if answer.stage_of is None:
            return None, answer.infeasible
        return candidate_of(self.problem, answer.stage_of, self.settings.solver), False
