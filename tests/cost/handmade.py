"""Small recorded graphs written by hand, so that prices are tested without capture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from partitioner.graph import ModelGraph, NodeInfo, NodeKind, Region, TensorMeta

__all__ = ["GraphBuilder", "meta"]

_storages = itertools.count()


def meta(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = True
) -> TensorMeta:
    return TensorMeta(
        shape=shape,
        dtype=dtype,
        requires_grad=requires_grad and (dtype.is_floating_point or dtype.is_complex),
        storage=next(_storages),
    )


class GraphBuilder:
    """Adds nodes with facts one by one."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model or nn.Module()
        self.graph = fx.Graph()

    def _with(
        self,
        node: fx.Node,
        kind: NodeKind,
        outputs: tuple[TensorMeta, ...],
        **facts: Any,
    ) -> fx.Node:
        node.meta["info"] = NodeInfo(
            id=f"{node.name}@0:0",
            kind=kind,
            module=facts.pop("module", ""),
            source=facts.pop("source", "model.py:1"),
            outputs=outputs,
            region=facts.pop("region", Region()),
            **facts,
        )
        return node

    def input(self, name: str, tensor: TensorMeta) -> fx.Node:
        return self._with(self.graph.placeholder(name), "input", (tensor,))

    def weight(self, path: str) -> fx.Node:
        tensor = dict(
            [
                *self.model.named_parameters(remove_duplicate=False),
                *self.model.named_buffers(remove_duplicate=False),
            ]
        )[path]
        facts = meta(
            *tensor.shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad
        )
        return self._with(self.graph.get_attr(path), "weight", (facts,))

    def call(
        self,
        target: Any,
        *args: Any,
        out: TensorMeta | tuple[TensorMeta, ...] = (),
        kind: NodeKind = "compute",
        facts: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> fx.Node:
        outputs = (out,) if isinstance(out, TensorMeta) else out
        make = self.graph.call_function
        if isinstance(target, str):
            is_module = target in dict(self.model.named_modules())
            make = self.graph.call_module if is_module else self.graph.call_method  # type: ignore[assignment]
        return self._with(make(target, args, kwargs), kind, outputs, **(facts or {}))

    def output(self, value: Any) -> fx.Node:
        return self._with(self.graph.output(value), "output", ())

    def build(self, **facts: Any) -> ModelGraph:
        return ModelGraph(
            model=self.model,
            graph=self.graph,
            inputs=(),
            example=((), {}),
            output=None,
            **{
                "spans": (),
                "dtype": torch.float32,
                "aliases": {},
                "groups": (),
                "order_edges": (),
                **facts,
            },
        )
