"""A segment's graph as functions that are compiled apart, run one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from partitioner.runtime.generated_code import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["BLOCK", "compiled_blocks"]

BLOCK = "block"
"""Key of ``node.meta``: the number of the block that a node is compiled in. A node
without one is made where it is read first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One function of (scope, *values read), which returns what later ones read."""

    function: Callable[..., tuple[Any, ...]]
    reads: Sequence[fx.Node]
    makes: Sequence[fx.Node]
    last_read: Sequence[fx.Node]
    """What nothing reads afterwards."""


def compiled_blocks(
    graph: fx.Graph, name: str, compiler: Callable[[Any], Any]
) -> Callable[..., tuple[Any, ...]]:
    """Compile each block of a graph.

    Args:
        graph: A segment's. Blocks are numbered in the order in which they run.
        name: Of the segment, for tracebacks.
        compiler: Compiles a function of (scope, *values): ``torch.compile``, above all.

    Returns:
        A function of (scope, *values), as ``generated_code.compiled`` makes.
    """
    *nodes, output = graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    parts = _parts(nodes)
    results: tuple[fx.Node, ...] = output.args[0]
    blocks: list[_Block] = []
    wanted = set(results)
    for number in sorted(parts, reverse=True):
        inside = parts[number]
        reads = _reads(inside)
        makes = [node for node in inside if node in wanted]
        _, plain = compiled(_graph_of(inside, reads, makes), f"{name}, block {number}")
        block = _Block(
            function=compiler(plain),
            reads=reads,
            makes=makes,
            last_read=[node for node in reads if node not in wanted],
        )
        blocks.insert(0, block)
        wanted.update(reads)
    return _in_turn(inputs, blocks, results)


def _in_turn(
    inputs: Sequence[fx.Node], blocks: Sequence[_Block], results: Sequence[fx.Node]
) -> Callable[..., tuple[Any, ...]]:
    def run(scope: Any, *values: Any) -> tuple[Any, ...]:
        at_hand = dict(zip(inputs, values, strict=True))
        for block in blocks:
            read = [at_hand[node] for node in block.reads]
            for node in block.last_read:
                del at_hand[node]
            made = block.function(scope, *read)
            at_hand.update(zip(block.makes, made, strict=True))
        return tuple(at_hand[node] for node in results)

    return run


def _parts(nodes: Sequence[fx.Node]) -> Mapping[int, list[fx.Node]]:
    """Return the nodes of each block.

    Weights are left out, since each block takes its own, but for what is returned.
    """
    last = max((node.meta.get(BLOCK, 0) for node in nodes), default=0)
    number: dict[fx.Node, int] = {}
    for node in reversed(nodes):
        users = [number[user] for user in node.users if user in number]
        own = node.meta.get(BLOCK)
        number[node] = min(users, default=last) if own is None else own
    parts: dict[int, list[fx.Node]] = {}
    for node in nodes:
        taken = node.op == "get_attr" and not _is_returned(node)
        if node.op != "placeholder" and not taken:
            parts.setdefault(number[node], []).append(node)
    return parts


def _is_returned(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _reads(inside: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the values that a block is given, in the order it reads them."""
    own = set(inside)
    found = dict.fromkeys(
        source
        for node in inside
        for source in node.all_input_nodes
        if source not in own and source.op != "get_attr"
    )
    return list(found)


def _graph_of(
    inside: Sequence[fx.Node], reads: Sequence[fx.Node], makes: Collection[fx.Node]
) -> fx.Graph:
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in reads}

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:  # a weight: nothing else is made out of turn
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in inside:
        copies[node] = graph.node_copy(node, copy)
    graph.output(tuple(copies[node] for node in makes))
    return graph
