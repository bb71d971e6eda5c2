"""Put the user's own costs in place of what was priced."""

from __future__ import annotations

import fnmatch
import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from partitioner.capture.patterns import Pattern, matching_paths
from partitioner.cost.kernels import dtype_name
from partitioner.errors import OptionError
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx, nn

    from partitioner.costed import CostedGraph, NodeCost
    from partitioner.graph import ModelGraph

__all__ = ["Cost", "GivenCost", "find_given", "operator_name", "with_given"]

_RUNS = frozenset({"compute", "late"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one call of an operator or a module costs for one micro-batch.

    What is None stays as it was priced, but for the seconds: they grow to what the
    given FLOPs take at the device's rate for products.

    Args:
        forward_flops: Forward FLOPs; one multiply-add is two.
        backward_flops: Backward FLOPs.
        forward_s: Forward seconds.
        backward_s: Backward seconds, recomputation not included.
        saved_bytes: What autograd keeps for backward, parameters excluded.

    Raises:
        OptionError: A figure is no number, negative or infinite, or none is given.
    """

    forward_flops: int | None = None
    backward_flops: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    saved_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check every figure that is given."""
        given = self.given()
        if not given:
            names = ", ".join(field.name for field in fields(self))
            raise OptionError("a Cost says nothing", hint=f"give one of {names}")
        for name, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                message = f"a Cost's {name} is {value!r}"
                raise OptionError(message, hint="give a number that is not negative")

    def given(self) -> dict[str, float]:
        """Return the figures that are given, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCost:
    """A cost, and what it was found to be the cost of."""

    pattern: str
    """As the user wrote it; a class by its name."""
    modules: tuple[str, ...]
    """Paths of the modules that it matches."""
    operators: tuple[str, ...]
    """Names of the operators that it matches, if it matches no module."""
    cost: Cost
    nodes: tuple[str, ...] = ()
    """Nodes, by id, that cost this together; then it matches nothing else."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for plan files."""
        return {
            "pattern": self.pattern,
            "modules": list(self.modules),
            "operators": list(self.operators),
            "cost": self.cost.given(),
            **({"nodes": list(self.nodes)} if self.nodes else {}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> GivenCost:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            pattern=str(stored["pattern"]),
            modules=tuple(map(str, stored["modules"])),
            operators=tuple(map(str, stored["operators"])),
            cost=Cost(**stored["cost"]),
            nodes=tuple(map(str, stored.get("nodes", ()))),
        )


def find_given(graph: ModelGraph, costs: Mapping[Any, Cost]) -> tuple[GivenCost, ...]:
    """Find out what the user's costs are the costs of.

    Args:
        graph: The recorded model.
        costs: Path or glob of modules, class of modules, or name of an operator as
            ``inspect --by operator`` shows it → what one call costs. Of modules inside
            one another that match one key, the outermost are meant.

    Raises:
        OptionError: A key matches nothing, or a value is no ``Cost``.
    """
    if not hasattr(costs, "items"):
        message = f"costs is a {type(costs).__name__}"
        raise OptionError(message, hint="give a dict of names or classes → Cost(…)")
    return tuple(_found(graph, pattern, cost) for pattern, cost in costs.items())


def _found(graph: ModelGraph, pattern: Any, cost: Any) -> GivenCost:
    name = pattern if isinstance(pattern, str) else getattr(pattern, "__name__", "")
    if not isinstance(pattern, str | type) or not name:
        message = f"costs: {pattern!r} is neither a name nor a class"
        raise OptionError(message, hint="give a path, a glob, a class or an operator")
    if not isinstance(cost, Cost):
        message = f"costs: {name} has {cost!r}"
        raise OptionError(message, hint="give a Cost(forward_flops=…, …)")
    called = _calls(graph)
    matched = [
        path
        for path, module in graph.model.named_modules()
        if path in called and path and _is(path, module, pattern)
    ]
    # "layers.*" matches what is inside the layers too: the layers are meant.
    inner = tuple(f"{path}." for path in matched)
    modules = tuple(path for path in matched if not path.startswith(inner))
    operators = () if modules else _operators(graph, name)
    if not modules and not operators:
        matching_paths(graph.model, [pattern], "costs")  # if none, says what is similar
        message = f"costs: {name} is not called in the forward"
        raise OptionError(message, hint="leave it out")
    return GivenCost(pattern=name, modules=modules, operators=operators, cost=cost)


def _is(path: str, module: nn.Module, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(path, pattern)
    return isinstance(module, pattern)


def _operators(graph: ModelGraph, name: str) -> tuple[str, ...]:
    names = {operator_name(graph, n) for n in graph.graph.nodes if _runs(n)}
    return (name,) if name in names else ()


def operator_name(graph: ModelGraph, node: fx.Node) -> str:
    """Return a function's name, or the class of a layer that is called whole."""
    if node.op == "call_module":
        return type(graph.model.get_submodule(str(node.target))).__name__
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "call")


def _runs(node: fx.Node) -> bool:
    return node.op != "output" and info(node).kind in _RUNS


def _calls(graph: ModelGraph) -> dict[str, list[list[fx.Node]]]:
    """Return the nodes of every call of every module, in program order."""
    found: dict[str, list[list[fx.Node]]] = {}
    rank = {node: position for position, node in enumerate(graph.graph.nodes)}
    for span in graph.spans:
        nodes = sorted(filter(_runs, span.nodes), key=rank.__getitem__)
        if nodes:
            found.setdefault(span.path, []).append(nodes)
    for node in filter(_runs, graph.graph.nodes):
        if node.op == "call_module":
            found.setdefault(str(node.target), []).append([node])
    return found


def with_given(costed: CostedGraph, given: Iterable[GivenCost]) -> CostedGraph:
    """Return the graph with the given costs; later ones win where two overlap.

    A module that was recorded through shares its cost among its operations, each in
    proportion to its own price.
    """
    given = tuple(given)
    if not given:
        return costed
    costs, calls = dict(costed.costs), _calls(costed.graph)
    by_id = {info(n).id: n for n in costed.graph.graph.nodes}
    covered: set[fx.Node] = set()
    for entry in given:
        for nodes in _meant(costed.graph, calls, by_id, entry):
            costs.update(_shared(costed, costs, nodes, entry.cost))
            covered.update(nodes)
    places = {(info(node).module, info(node).source) for node in covered}
    unpriced = tuple(
        item for item in costed.unpriced if (item.module, item.source) not in places
    )
    return replace(costed, costs=costs, unpriced=unpriced, given=given)


def _meant(
    graph: ModelGraph,
    calls: Mapping[str, list[list[fx.Node]]],
    by_id: Mapping[str, fx.Node],
    entry: GivenCost,
) -> list[list[fx.Node]]:
    if entry.nodes:
        return [[by_id[name] for name in entry.nodes]]
    if entry.modules:
        return [nodes for path in entry.modules for nodes in calls.get(path, [])]
    names = set(entry.operators)
    nodes = filter(_runs, graph.graph.nodes)
    return [[node] for node in nodes if operator_name(graph, node) in names]


def _shared(
    costed: CostedGraph,
    costs: Mapping[fx.Node, NodeCost],
    nodes: Sequence[fx.Node],
    cost: Cost,
) -> dict[fx.Node, NodeCost]:
    figures = cost.given()
    said = [f"{way}_s" for way in ("forward", "backward") if f"{way}_s" in figures]
    for way in ("forward", "backward"):
        flops = figures.get(f"{way}_flops")
        if flops is not None and f"{way}_s" not in figures:
            dtype = dtype_name(costed.graph.dtype)
            least_s = flops / costed.profile.flops_per_s(dtype, "matmul")
            priced_s = sum(getattr(costs[node], f"{way}_s") for node in nodes)
            figures[f"{way}_s"] = max(priced_s, least_s)
    changed = {node: _without_host(costs[node], said) for node in nodes}
    for name, value in figures.items():
        shares = _shares([getattr(costs[node], name) for node in nodes])
        parts = _parts(value, shares, whole=not name.endswith("_s"))
        for node, part in zip(nodes, parts, strict=True):
            changed[node] = replace(changed[node], **{name: part})
    return changed


def _without_host(cost: NodeCost, said: Sequence[str]) -> NodeCost:
    """Return a cost without the host's part in passes whose seconds were said.

    Who says or has measured what a pass takes has counted the host.
    """
    device_s = cost.forward_s + cost.backward_s
    said_s = sum(getattr(cost, name) for name in said)
    share = said_s / device_s if device_s else 0.0
    return replace(cost, host_s=(1 - share) * cost.host_s)


def _shares(values: Sequence[float]) -> list[float]:
    """Return each value's part of their sum; equal parts of nothing."""
    total = sum(values)
    return [value / total if total else 1 / len(values) for value in values]


def _parts(value: float, shares: Sequence[float], *, whole: bool) -> list[Any]:
    """Divide a value; whole numbers stay whole and add up to it."""
    if not whole:
        return [value * share for share in shares]
    bounds, sum_of_shares = [0], 0.0
    for share in shares:
        sum_of_shares += share
        bounds.append(round(value * sum_of_shares))
    bounds[-1] = round(value)
    return [after - before for before, after in itertools.pairwise(bounds)]
