"""Reads the workloads of dnn-partitioning and states them as problems.

Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators,
NeurIPS 2020. The load of a device is the time of its nodes plus, for every tensor that
is made or read there and also elsewhere, the time to move it once through memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from partitioner.solve import Problem, Unit, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Optimum", "Workload", "read_expert", "read_optima", "read_workloads"]

Class = tuple[str, int]
"""A colour, or a node by itself."""


class Node(BaseModel):
    """One operator or layer, in one direction."""

    id: int
    time: float = Field(alias="fpgaLatency", ge=0)
    size: float = Field(ge=0)
    backward: bool = Field(alias="isBackwardNode")
    supported: bool = Field(alias="supportedOnFpga")
    colour: int | None = Field(default=None, alias="colorClass")

    @property
    def kin(self) -> Class:
        """What must share its device."""
        if self.colour is None:
            return "node", self.id
        return "colour", self.colour


class Edge(BaseModel):
    """One tensor from one node to another."""

    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    cost: float = Field(ge=0)


class File(BaseModel):
    """One workload file."""

    devices: int = Field(alias="maxFPGAs", ge=1)
    memory: float = Field(alias="maxSizePerFPGA", gt=0)
    nodes: list[Node]
    edges: list[Edge]


class Optimum(BaseModel):
    """The known optimum of a workload."""

    devices: int = Field(alias="k")
    load: float = Field(alias="max_load")
    stages: dict[int, int]


@dataclass(frozen=True)
class Workload:
    """One workload, with what placing it means."""

    name: str
    file: File

    @cached_property
    def nodes(self) -> dict[int, Node]:
        """Nodes by id (ids have gaps)."""
        return {node.id: node for node in self.file.nodes}

    @cached_property
    def classes(self) -> dict[int, int]:
        """Number of the class of each node: what shares a device."""
        numbers: dict[Class, int] = {}
        return {
            node.id: numbers.setdefault(node.kin, len(numbers))
            for node in self.file.nodes
        }

    @cached_property
    def order(self) -> list[tuple[int, int]]:
        """Pairs (before, after) of classes: the first may not be on a later stage.

        The data flow of forward. Classes without a forward node get one that costs
        nothing, with the edges of their backward nodes turned round.
        """
        forward = {
            self.classes[node.id] for node in self.file.nodes if not node.backward
        }
        return list(dict.fromkeys(self._ordered(forward)))

    def _ordered(self, forward: set[int]) -> Iterator[tuple[int, int]]:
        for edge in self.file.edges:
            ends = self.classes[edge.source], self.classes[edge.target]
            late = [self.nodes[end].backward for end in (edge.source, edge.target)]
            if ends[0] == ends[1]:
                continue
            if not any(late):
                yield ends
            elif all(late) and not forward.issuperset(ends):
                yield ends[::-1]

    @cached_property
    def tensors(self) -> list[tuple[int, frozenset[int], float]]:
        """Each node's output: its class, the classes that read it, its time."""
        readers: dict[int, set[int]] = defaultdict(set)
        cost: dict[int, float] = {}
        for edge in self.file.edges:
            readers[edge.source].add(self.classes[edge.target])
            cost[edge.source] = edge.cost
        return [
            (self.classes[node], frozenset(read - {self.classes[node]}), cost[node])
            for node, read in readers.items()
            if read - {self.classes[node]}
        ]

    @cached_property
    def problem(self) -> Problem:
        """The workload as a problem of the planner."""
        count = len(set(self.classes.values()))
        time_s, size = [0.0] * count, [0.0] * count
        for node in self.file.nodes:
            time_s[self.classes[node.id]] += node.time
            size[self.classes[node.id]] += node.size
        return Problem(
            units=tuple(
                Unit(
                    name=f"class{number}",
                    forward_s=time_s[number],
                    backward_s=0.0,
                    saved_bytes=0,
                    static_bytes=int(size[number]),
                    trainable=True,
                )
                for number in range(count)
            ),
            values=tuple(
                Value(
                    producer=made,
                    consumers=tuple(sorted(read)),
                    hop_s=cost,
                    wire_bytes=0,
                )
                for made, read, cost in self.tensors
            ),
            stages=self.file.devices,
            micro_batches=1,
            in_flight=(1,) * self.file.devices,
            memory_limit_bytes=int(self.file.memory),
            order_edges=tuple(self.order),
            checkpointing="none",
            objective="bottleneck",
            transfer="ends",
        )

    def stage_of_nodes(self, stage_of: Sequence[int]) -> dict[int, int]:
        """Spread the stages of the classes to the nodes."""
        return {node: stage_of[number] for node, number in self.classes.items()}

    def load(self, stage_of: Mapping[int, int]) -> float:
        """Return the largest load of a device, node by node from the file.

        Infinite if a device is too small, a class is split, or data flows backwards.
        """
        spent, held = [0.0] * self.file.devices, [0.0] * self.file.devices
        for node in self.file.nodes:
            spent[stage_of[node.id]] += node.time
            held[stage_of[node.id]] += node.size
        touched: dict[int, set[int]] = defaultdict(set)
        cost: dict[int, float] = {}
        for edge in self.file.edges:
            touched[edge.source] |= {stage_of[edge.source], stage_of[edge.target]}
            cost[edge.source] = edge.cost
        for source, devices in touched.items():
            for device in devices if len(devices) > 1 else ():
                spent[device] += cost[source]
        place: dict[int, int] = {}
        split = any(
            place.setdefault(self.classes[n], stage_of[n]) != stage_of[n]
            for n in self.nodes
        )
        back = any(place[before] > place[after] for before, after in self.order)
        small = max(held) > self.file.memory
        return float("inf") if split or back or small else max(spent)


def read_workloads(folder: Path) -> list[Workload]:
    """Read all throughput workloads under ``dnn-partitioning``."""
    root = folder / "dnn-partitioning" / "throughput-inputs"
    return [
        Workload(
            name=f"{path.parent.name}/{path.stem}",
            file=File.model_validate_json(path.read_text(encoding="utf-8")),
        )
        for path in sorted(root.glob("*/*.json"))
    ]


def read_optima(folder: Path) -> dict[str, Optimum]:
    """Read the known optima, by workload."""
    path = folder / "dnn-partitioning" / "reference_optima.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    return {name: Optimum.model_validate(entry) for name, entry in known.items()}


def read_expert(folder: Path, workload: Workload) -> dict[int, int] | None:
    """Return the stages that an expert gave the nodes, or None if none did."""
    kind, _, stem = workload.name.partition("/")
    path = folder / "dnn-partitioning" / "human-experts" / f"{stem}_expert.json"
    if kind != "LayerGraphs" or not path.exists():
        return None
    placed = json.loads(path.read_text(encoding="utf-8"))
    by_class = {
        workload.classes[node]: stage
        for stage, device in enumerate(placed["fpgas"])
        for node in device["nodes"]
    }
    return {node: by_class[number] for node, number in workload.classes.items()}
