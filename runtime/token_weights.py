"""Count what a loss averages over, to average over a whole batch instead.

A loss is the mean over the tokens of one micro-batch. The mean of such means over
micro-batches and replicas weighs a token of a short micro-batch more than one of a
long one. With its number of tokens nᵢ a micro-batch's loss is multiplied by
nᵢ · M · R / Σn, the sum over all M micro-batches of all R replicas: DeepSpeed's mean of
the M · R products is then the mean over all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx
from torch.nn import functional

from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.runtime.segment import SegmentBody, SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.runtime.loss import LossHead

__all__ = ["TokenCounter", "weights"]

IGNORED = -100
"""The label that losses leave out, in torch and in Hugging Face's models."""

_LOSSES = (functional.cross_entropy, functional.nll_loss)
_ASK = "pass token_weighted=, a function of a micro-batch that counts its tokens"


def weights(counts: list[int], total: int, replicas: int) -> list[float]:
    """Return what to multiply the losses of a replica's micro-batches with.

    Args:
        counts: Tokens of each of them.
        total: Tokens of all micro-batches of all replicas.
        replicas: Their number.
    """
    share = len(counts) * replicas / max(total, 1)
    return [count * share for count in counts]


class TokenCounter:
    """Counts the tokens over which the loss of a micro-batch is a mean.

    Without a function, where the model computes its own loss: the targets that the
    cross entropy in its recording is given (a causal model's are its labels, shifted);
    where a ``loss_fn`` does: the labels that are not -100.

    Args:
        head: The loss.
        count: The user's own function of a micro-batch, or None.

    Raises:
        OptionError: The recording does not show what the loss averages over.
    """

    def __init__(
        self, head: LossHead, count: Callable[[Any], Any] | None = None
    ) -> None:
        self._head = head
        self._count = count
        self._targets: _Targets | None = None
        if count is None and head.loss_fn is None:
            self._targets = _Targets(head.body, head.labels.late)

    def __call__(self, batch: Any, labels: Any) -> int:
        """Return the number of tokens.

        Args:
            batch: The micro-batch as the user's loader gave it.
            labels: The flat labels that the batch adapter made of it, just now.

        Raises:
            RuntimeGuardError: It cannot be told from these labels.
        """
        if self._count is not None:
            return int(self._count(batch))
        late, targets = self._head.labels.split_latest(labels)
        if self._targets is not None:
            return self._targets.count(late)
        if isinstance(targets, Mapping):
            targets = targets.get("labels")
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            raise RuntimeGuardError(
                "token_weighted=True counts labels that are one integer tensor, alone "
                'or under the name "labels"',
                hint=_ASK,
            )
        return int((targets != IGNORED).sum())


class _Targets:
    """The part of a recorded loss that makes its targets of the labels.

    Args:
        body: The recorded end of the model.
        late: How many of its last placeholders are inputs of the model.
    """

    def __init__(self, body: SegmentBody | None, late: int) -> None:
        nodes = [] if body is None else [n for n in body.graph.nodes if _is_loss(n)]
        if body is None or len(nodes) != 1:
            raise OptionError(
                "token_weighted=True needs one cross entropy at the end of the "
                f"recorded model that its labels alone lead to; found {len(nodes)}",
                hint=_ASK,
            )
        (loss,) = nodes
        _check_is_mean(loss)
        self._ignored = loss.kwargs.get("ignore_index", IGNORED)
        target = loss.args[1] if len(loss.args) > 1 else loss.kwargs.get("target")
        graph = _leading_to(target, body.graph, late)
        self._program = SegmentProgram(
            replace(body, name=f"targets of {body.name}", graph=graph)
        )

    def count(self, late: tuple[Tensor, ...]) -> int:
        """Return the number of targets that count, from the late inputs."""
        (targets,) = self._program(*late)
        return int((targets != self._ignored).sum())


def _check_is_mean(loss: fx.Node) -> None:
    reduction, weight = loss.kwargs.get("reduction", "mean"), loss.kwargs.get("weight")
    if reduction != "mean" or weight is not None or len(loss.args) > 2:  # noqa: PLR2004 - (input, target)
        raise OptionError(
            "token_weighted=True needs a cross entropy that is a plain mean over its "
            f"targets; the recorded one is called with reduction={reduction!r}, "
            f"weight={weight}",
            hint=_ASK,
        )


def _leading_to(target: Any, source: fx.Graph, late: int) -> fx.Graph:
    """Return the graph from the late inputs to ``target``."""
    placeholders = list(source.find_nodes(op="placeholder"))
    inputs = placeholders[len(placeholders) - late :]
    needed: set[fx.Node] = {target}
    for node in reversed(source.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    foreign = [n for n in placeholders if n in needed and n not in inputs]
    if foreign:
        raise OptionError(
            "token_weighted=True needs targets that the labels alone lead to; the "
            f"recorded loss's depend on {', '.join(n.name for n in foreign)}",
            hint=_ASK,
        )
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in source.nodes:
        if node in inputs or (node in needed and node.op != "placeholder"):
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output((made[target],))
    return graph


def _is_loss(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _LOSSES
