"""① ModelGraph: what one forward of the model does, as a torch.fx graph with facts.

Made by ``partitioner.capture``; read by cost, emit and verify.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import fx, nn

    from partitioner.runtime.guards import SizeGuard, WeightGuards

__all__ = [
    "Constraints",
    "InputSpec",
    "ModelGraph",
    "NodeInfo",
    "NodeKind",
    "Region",
    "Span",
    "TensorMeta",
    "info",
]

NodeKind = Literal["input", "size", "weight", "constant", "compute", "late", "output"]
"""What a node is to the partitioner.

``input``: a tensor leaf of the forward's arguments. ``size``: an integer made of input
dimensions. ``weight``: a parameter or buffer. ``constant``: depends on neither data
nor parameters, so every stage rebuilds it instead of receiving it. ``compute``: what is
placed on a stage. ``late``: runs inside the loss function on the last stage, because it
reads an input (labels) that DeepSpeed hands to the last stage.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta:
    """Shape and kind of one tensor, as seen at the example inputs' sizes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    storage: int
    """Equal numbers share memory (views, in-place results)."""
    varying: tuple[int, ...] = ()
    """Dimensions that follow the sizes of the inputs."""
    order: tuple[int, ...] = ()
    """Dimensions from the outermost to the innermost in memory, as of channels-last
    images; empty: they lie in memory as they come."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, views counted as if they were copies."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Modes a node runs under: state that a forward enters, not an operation."""

    grad_enabled: bool = True
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """(device type, dtype) of every autocast that is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """Facts about one node, under ``node.meta["info"]``."""

    id: str
    """Stable identity: ``module path@call number:operator number``."""
    kind: NodeKind
    module: str
    """Path of the innermost recorded module call ("" for the root)."""
    source: str
    """``file:line`` of the user's code, or ""."""
    outputs: tuple[TensorMeta, ...] = ()
    """Its tensors, flattened in order."""
    saved: tuple[tuple[int, int], ...] = ()
    """(storage, bytes) that autograd keeps because of this node, weights excluded; also
    what it keeps for another node as well."""
    writes: tuple[int, ...] = ()
    """Storages it changes in place."""
    draws: bool = False
    """Whether it takes random numbers."""
    differentiates: bool = False
    """Whether it computes gradients in its forward, as leaves may."""
    draw_key: str = ""
    """Names the draw: ``module path@call:function#number``."""
    region: Region = Region()


def info(node: fx.Node) -> NodeInfo:
    """Return the facts that capture wrote on ``node``."""
    found: NodeInfo = node.meta["info"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One tensor leaf of the forward's arguments."""

    name: str
    path: tuple[str | int, ...]
    """Where it sits in ``{"args": [...], "kwargs": {...}}``."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    """As recorded."""
    symbols: tuple[int, ...] = ()
    """For each dimension the number of the free size that it follows (equal numbers
    must be equal at run time), or -1 if it may not differ from ``shape``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One call of a module that was recorded through: what re-fusing it needs."""

    path: str
    call: int
    nodes: frozenset[fx.Node]
    """Nodes recorded inside, nested calls included."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    """Arguments as fx arguments (nodes in place of tensors)."""
    outputs: tuple[tuple[tuple[tuple[str, Any], ...], fx.Node], ...]
    """(access path, node) of every tensor it returns; a step is ("item", key) or
    ("attr", name)."""
    region: Region
    opened_because: str = ""
    """Why it can never be called whole; "" if it can."""
    parent: int | None = None
    """Index of the enclosing span."""

    @property
    def id(self) -> str:
        """Stable identity of the call."""
        return f"{self.path}@{self.call}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the user wants kept whole or together, as paths of modules."""

    leaf: tuple[str, ...] = ()
    """Never recorded through: whole, on one stage."""
    keep_together: tuple[tuple[str, ...], ...] = ()
    """Each group runs on one stage."""
    no_cut_inside: tuple[str, ...] = ()
    """No cut goes through any of these."""
    pin: tuple[tuple[str, int], ...] = ()
    """Modules and the stage that each runs on (negative: from the last)."""
    equal_stages: tuple[str, ...] = ()
    """Every stage runs equally many of these, each whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A recorded model: nodes, module calls, inputs, outputs, weights, assumptions."""

    model: nn.Module
    """The user's own module, untouched."""
    graph: fx.Graph
    spans: tuple[Span, ...]
    inputs: tuple[InputSpec, ...]
    example: tuple[tuple[Any, ...], Mapping[str, Any]]
    """The example arguments: (args, kwargs)."""
    output: Any
    """Output structure: nodes in place of tensors (see ``capture.tree``)."""
    dtype: torch.dtype
    """Floating dtype the parameters were recorded in."""
    aliases: Mapping[str, str]
    """Every parameter and buffer name → the first name of the same tensor."""
    groups: tuple[frozenset[fx.Node], ...]
    """Nodes that no cut may separate (in-place writes and their storage, written
    buffers, parts of one result, what the user keeps together)."""
    order_edges: tuple[tuple[fx.Node, fx.Node], ...]
    """(before, after) where no data flows but order matters."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that the forward takes from outside parameters and buffers."""
    casts: bool = False
    """Whether floating parameters and inputs were recorded in ``dtype`` instead of
    their own."""
    written_buffers: frozenset[str] = frozenset()
    constraints: Constraints = field(default_factory=Constraints)
    configs: tuple[object, ...] = ()
    """Objects whose ``use_cache`` is switched off while the model runs."""
    assumptions: tuple[str, ...] = ()
    """What the recording took for granted, in words."""
    guards: tuple[SizeGuard, ...] = ()
    """What Python decided by the free sizes; checked for every batch."""
    weight_guards: WeightGuards | None = None
    """What was taken for granted of the weights; checked at the first batch."""
    fingerprint: str = ""
    """Hash of nodes, arguments and weights' shapes."""

    def describe(self) -> str:
        """Return one line per node: id, operator, shapes and source."""
        lines = [f"{type(self.model).__name__}: {len(self.graph.nodes)} nodes"]
        for node in self.graph.nodes:
            facts = info(node)
            shapes = ", ".join(str(list(meta.shape)) for meta in facts.outputs)
            lines.append(
                f"  {facts.kind:8} {facts.id:40} {_operator(node)} → {shapes}"
                f"  {facts.source}"
            )
        return "\n".join(lines)


def _operator(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "call")
