"""Adds the memory of every stage to the program, recomputation included."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pulp

from partitioner.solve.linear import Term
from partitioner.solve.score import RECEIVED_COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partitioner.solve.parts import Tie
    from partitioner.solve.program import Program

__all__ = ["MemoryRows"]

Terms = list[tuple[Term, float]]


class MemoryRows:
    """Memory rows of a program, exact for every way to recompute.

    ``rec[b, s] = 1`` says that the part of block b on stage s is recomputed;
    ``r[b, g, s] = on[g, s] * rec[b, s]`` is linearised by its envelope (McCormick,
    Mathematical Programming 10, 1976).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.groups = program.groups
        self.problem = program.groups.problem
        self.limit = max(limit for limit in self.problem.limits if limit is not None)
        self.scale = 1.0 / max(1, self.limit)
        self.choice = self.problem.checkpointing == "auto"
        self.static = [0] * len(self.groups)
        self.step = [0] * len(self.groups)
        self.transient = [0] * len(self.groups)
        self.tail_transient = [0] * len(self.groups)
        self.freed = [0] * len(self.groups)
        self.saved = [0] * len(self.groups)
        self.block_s: dict[tuple[int, int], float] = defaultdict(float)
        self.block_bytes: dict[tuple[int, int], int] = defaultdict(int)
        self.beyond_bytes: dict[tuple[int, int], int] = defaultdict(int)
        for unit, group in zip(self.problem.units, self.groups.group_of, strict=True):
            self.static[group] += unit.static_bytes
            self.step[group] += unit.step_bytes
            most = self.tail_transient if unit.tail else self.transient
            most[group] = max(most[group], unit.transient_bytes)
            self.freed[group] += unit.freed_bytes
            self.saved[group] += unit.saved_bytes
            if unit.block >= 0:
                self.block_s[unit.block, group] += unit.forward_s
                key = unit.block, group
                self.block_bytes[key] += unit.saved_bytes
                self.beyond_bytes[key] = max(self.beyond_bytes[key], unit.beyond_bytes)

    def add(self) -> list[Term]:
        """Add the rows; return the chosen recomputation time of each stage, scaled."""
        again: list[Term] = [0] * self.problem.stages
        for rank, limit in enumerate(self.problem.limits):
            if limit is not None:
                self._rank(rank, limit, again)
        return again

    def _rank(self, rank: int, limit: int, again: list[Term]) -> None:
        stages = self.problem.stages_of(rank)
        ties = self._ties(rank, stages)
        self._step(rank, limit, ties)
        terms = [(held, float(tie.static_bytes)) for held, tie in ties]
        parts = self._transient(stages)
        for stage in stages:
            terms += self._kept(stage)
            if self.problem.checkpointing != "none":
                again[stage] = self._recomputed(stage, terms, parts)
        terms.append((self._largest(f"p{rank}", parts), float(self.limit)))
        self._at_most(terms, limit - self.problem.engine_bytes)

    def _at_most(self, terms: Iterable[tuple[Term, float]], limit: int) -> None:
        row = ((term, size * self.scale) for term, size in terms)
        self.program.rows.add(row, "<=", limit * self.scale)

    def _step(self, rank: int, limit: int, ties: Iterable[tuple[Term, Tie]]) -> None:
        """Bound what a rank holds while its optimizer steps."""
        terms = [(held, float(tie.static_bytes + tie.step_bytes)) for held, tie in ties]
        for stage in self.problem.stages_of(rank):
            terms += [
                (self.program.on(group, stage), float(static + step))
                for group, (static, step) in enumerate(
                    zip(self.static, self.step, strict=True)
                )
                if self._possible(group, stage)
            ]
            terms += self._wires(stage, 0)
        self._at_most(terms, limit - self.problem.engine_bytes)

    def _transient(self, stages: Iterable[int]) -> list[Terms]:
        """Return what the backward of each unit holds, in the tail and before."""
        found: list[Terms] = []
        for stage in stages:
            reserved = (1, float(self.problem.reserved_bytes))
            before: Terms = [reserved, *self._room(stage)]
            plain = [(before, self.transient), ([], self.tail_transient)]
            found.append(before)
            found += [
                [*base, (self.program.on(group, stage), float(size))]
                for base, sizes in plain
                for group, size in enumerate(sizes)
                if size and self._possible(group, stage)
            ]
        return found

    def _room(self, stage: int) -> Terms:
        """Return what makes room once the backward of the tail is done."""
        return [
            (self.program.on(group, stage), -float(size))
            for group, size in enumerate(self.freed)
            if size and self._possible(group, stage)
        ]

    def _kept(self, stage: int) -> Terms:
        """Return what a stage holds if nothing is recomputed, ties aside."""
        in_flight = self.problem.in_flight[stage]
        here = (g for g in range(len(self.groups)) if self._possible(g, stage))
        terms: Terms = [
            (
                self.program.on(g, stage),
                float(self.static[g] + in_flight * self.saved[g]),
            )
            for g in here
        ]
        return terms + self._wires(stage, in_flight)

    def _largest(self, name: str, parts: Iterable[Terms]) -> Term:
        """Return a variable that is at least each of some sums, scaled."""
        peak = pulp.LpVariable(name, 0)
        for part in parts:
            scaled = ((term, size * self.scale) for term, size in part)
            self.program.rows.add([*scaled, (peak, -1.0)], "<=", 0.0)
        return peak

    def _possible(self, group: int, stage: int) -> bool:
        return bool(self.program.earliest[group] <= stage <= self.program.latest[group])

    def _wires(self, stage: int, in_flight: int) -> Terms:
        """Return the buffers of the wire, and what some micro-batches hold of it."""
        terms: Terms = []
        copies = self.problem.received_buffers + RECEIVED_COPIES * in_flight
        for index, value in enumerate(self.groups.values):
            if stage:
                received = self.program.cuts[stage - 1][index]
                terms.append((received, copies * float(value.wire_bytes)))
            if stage < self.problem.stages - 1:
                sent = self.program.cuts[stage][index]
                terms.append((sent, (1 + in_flight) * float(value.wire_bytes)))
        return terms

    def _ties(self, rank: int, stages: Iterable[int]) -> list[tuple[Term, Tie]]:
        """Return whether a rank holds a copy of each tie."""
        found = []
        for index, tie in enumerate(self.problem.ties):
            users = sorted({self.groups.group_of[unit] for unit in tie.units})
            flags = [self.program.on(g, stage) for stage in stages for g in users]
            held = self.program.any_of(f"t{index}_{rank}", flags)
            found.append((held, tie))
        return found

    # ------------------------------------------------------------ recomputation

    def _recomputed(self, stage: int, terms: Terms, parts: list[Terms]) -> Term:
        """Add the bytes that recomputation changes; return its time if chosen.

        Args:
            stage: Where.
            terms: Bytes of the rank, to be extended.
            parts: Bytes brought back by each block of the rank, to be extended.
        """
        in_flight = self.problem.in_flight[stage]
        chosen = self._choices(stage)
        freed, spent, blocks = self._products(stage, chosen)
        parts += blocks
        terms += self._inputs(stage, chosen, in_flight)
        terms += [(term, -in_flight * size) for term, size in freed]
        if not self.choice:
            return 0
        scale = 1.0 / self.program.scale_s
        again = ((term, seconds * scale) for term, seconds in spent)
        return self.program.rows.equal(f"a{stage}", again)

    def _choices(self, stage: int) -> dict[int, Term]:
        """Return, for each block that may be on a stage, whether it is recomputed."""
        blocks = sorted(
            {block for block, group in self.block_s if self._possible(group, stage)}
        )
        if not self.choice:
            return dict.fromkeys(blocks, 1)
        return {
            block: pulp.LpVariable(f"k{block}_{stage}", cat=pulp.LpBinary)
            for block in blocks
        }

    def _products(
        self, stage: int, chosen: dict[int, Term]
    ) -> tuple[Terms, Terms, Iterable[Terms]]:
        """Return what is recomputed, weighted by bytes, by seconds, and by block."""
        freed: Terms = []
        spent: Terms = []
        parts: dict[int, Terms] = defaultdict(lambda: self._room(stage))
        beyond: dict[int, Terms] = defaultdict(list)
        for (block, group), seconds in self.block_s.items():
            if block in chosen and self._possible(group, stage):
                again = self._product(
                    f"r{block}_{group}_{stage}",
                    self.program.on(group, stage),
                    chosen[block],
                )
                size = float(self.block_bytes[block, group])
                freed.append((again, size))
                spent.append((again, seconds))
                parts[block].append((again, size))
                if self.beyond_bytes[block, group]:
                    more = float(self.beyond_bytes[block, group])
                    beyond[block].append((again, more))
        peaks = list(parts.values())
        peaks += [[*parts[b], more] for b, terms in beyond.items() for more in terms]
        return freed, spent, peaks

    def _product(self, name: str, on: Term, chosen: Term) -> Term:
        if isinstance(on, int):
            return chosen if on else 0
        if isinstance(chosen, int):
            return on
        both = pulp.LpVariable(name, 0, 1)
        rows = self.program.rows
        rows.add([(both, 1.0), (on, -1.0)], "<=", 0.0)
        rows.add([(both, 1.0), (chosen, -1.0)], "<=", 0.0)
        rows.add([(both, 1.0), (on, -1.0), (chosen, -1.0)], ">=", -1.0)
        return both

    def _inputs(self, stage: int, chosen: dict[int, Term], in_flight: int) -> Terms:
        """Return what recomputed blocks keep of the values that they read."""
        group_of, program = self.groups.group_of, self.program
        kept: dict[int, list[Term]] = defaultdict(list)
        sizes: dict[int, int] = {}
        for index, read in enumerate(program.reads):
            if read.block not in chosen:
                continue
            readers = {group_of[unit] for unit in read.readers}
            made: Term = 0
            if read.inside:
                producer = group_of[read.producer]
                readers.discard(producer)
                made = program.on(producer, stage)
            key = index if self.choice else read.value
            sizes[key] = read.wire_bytes
            kept[key] += [
                self._reads(program.on(reader, stage) - made, chosen[read.block])
                for reader in sorted(readers)
                if self._possible(reader, stage)
            ]
        return [
            (program.any_of(f"i{key}_{stage}", flags), in_flight * float(sizes[key]))
            for key, flags in kept.items()
        ]

    def _reads(self, reads: Term, chosen: Term) -> Term:
        """Return a lower bound, tight at integers, on ``reads * chosen``."""
        if isinstance(chosen, int):
            return reads
        if isinstance(reads, int):
            return chosen if reads > 0 else 0
        return reads + chosen - 1
