"""Through which values a gradient comes back from the model's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partitioner.graph import ModelGraph, TensorMeta, info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import fx

__all__ = ["GradientFlow", "requires_grad"]


def requires_grad(node: fx.Node) -> bool:
    """Whether autograd follows what ``node`` makes."""
    return any(map(_requires_grad, info(node).outputs))


def _requires_grad(meta: TensorMeta) -> bool:
    has_gradient = meta.dtype.is_floating_point or meta.dtype.is_complex
    return meta.requires_grad and has_gradient


class GradientFlow:
    """Who of a value's readers sends a gradient back to it.

    What no output depends on gets none in the original: what its producers saved may
    be written in place. So a boundary must send it without a gradient. What a leaf that
    differentiates by itself reads counts too. A reader depends on the writes to the
    memory it reads that ran before it, and on none that ran later.

    Args:
        graph: The recorded model.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self._place = {node: i for i, node in enumerate(graph.graph.nodes)}
        self._writers: dict[fx.Node, set[fx.Node]] = {}
        for group in graph.groups:
            writers = {node for node in group if info(node).writes}
            for node in group if writers else ():
                self._writers.setdefault(node, set()).update(writers)
        self._readers: dict[fx.Node, set[fx.Node]] = {}
        self._follow(graph)

    def _follow(self, graph: ModelGraph) -> None:
        waiting = [graph.graph.output_node()]
        waiting += [n for n in graph.graph.nodes if _may_differentiate(graph, n)]
        found = set(waiting)
        while waiting:
            reader = waiting.pop()
            for source in self._sources(reader):
                self._readers.setdefault(source, set()).add(reader)
                if source not in found:
                    found.add(source)
                    waiting.append(source)

    def _sources(self, reader: fx.Node) -> Iterator[fx.Node]:
        """Yield what a node reads, and who has written there before."""
        for source in reader.all_input_nodes:
            if requires_grad(source):
                yield source
            for writer in self._writers.get(source, ()):
                if self._place[writer] < self._place[reader]:
                    yield writer  # perhaps without a result (``h[0] = x``)

    def comes_back(
        self, node: fx.Node, stage: int, stage_of: Mapping[fx.Node, int]
    ) -> bool:
        """Whether later stages send a gradient back to a value.

        Args:
            node: The value.
            stage: The stage before the boundary.
            stage_of: Stage of every placed node; of others, such as the output, the
                last.
        """
        readers = self._readers.get(node, ()) if requires_grad(node) else ()
        return any(stage_of.get(reader, stage + 1) > stage for reader in readers)


def _may_differentiate(graph: ModelGraph, node: fx.Node) -> bool:
    """Whether a leaf computes gradients in its forward, and hands on none."""
    if node.op != "call_module" or requires_grad(node):
        return False
    if info(node).differentiates:
        return True
    # What TorchScript calls was not seen.
    inner = graph.model.get_submodule(str(node.target)).modules()
    return any(isinstance(module, torch.jit.ScriptModule) for module in inner)
