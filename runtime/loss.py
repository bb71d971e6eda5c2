"""The loss on the last stage: the model's tail that needs labels, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.errors import EmitError, RuntimeGuardError
from partitioner.runtime.segment import SegmentBody, SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.runtime.labels import LabelsLayout

__all__ = ["LossHead"]


class LossHead:
    """What DeepSpeed calls as ``loss_fn(outputs, labels)``.

    Not an ``nn.Module``: DeepSpeed would register it on every stage.

    Args:
        loss_fn: The user's ``loss_fn(output, labels)``; None takes the loss that
            the model itself returns.
        body: The operations that need late inputs: from all values of the last
            segment, then the late inputs, to the leaves of the model's output.
            None if the values are those leaves.
        rebuild: Makes the model's output from its leaves.
        labels: Tells late inputs and the user's labels apart.

    Raises:
        EmitError: The loss has parameters.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Any] | None,
        body: SegmentBody | None,
        rebuild: Callable[[Sequence[Any]], Any],
        labels: LabelsLayout,
    ) -> None:
        self._loss_fn = loss_fn
        self._program = None if body is None else SegmentProgram(body)
        self._rebuild = rebuild
        self._labels = labels
        for module in self._modules():
            _refuse_parameters(module)

    def train(self, mode: bool = True) -> LossHead:  # noqa: FBT001, FBT002 - nn.Module's signature
        """Follow the mode of the pipeline's modules."""
        for module in self._modules():
            module.train(mode)
        return self

    def to(self, device: torch.device | str) -> LossHead:
        """Follow the pipeline's modules to a device."""
        for module in self._modules():
            module.to(device)
        return self

    def output(self, values: Sequence[Any], late: Sequence[Tensor]) -> Any:
        """Return the model's output.

        Args:
            values: The values of the last segment.
            late: The inputs that only this part uses.
        """
        if self._program is None:
            return self._rebuild(tuple(values))
        return self._rebuild(self._program(*values, *late))

    def __call__(self, outputs: Sequence[Any], labels: Any) -> Tensor:
        """Return the loss of one micro-batch.

        Args:
            outputs: ``(token, *values)`` of the last segment. A list is emptied: who
                holds it does not hold the logits as well.
            labels: The flat labels of the batch adapter.

        Returns:
            A scalar.

        Raises:
            RuntimeGuardError: There is no scalar loss, or nothing to train by it.
        """
        token, *values = outputs
        if isinstance(outputs, list):
            outputs.clear()
        late, targets = self._labels.split(labels)
        output = self.output(values, late)
        if self._loss_fn is None:
            loss = _own_loss(output)
        else:
            loss = _scalar(self._loss_fn(output, targets), "loss_fn returned")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise RuntimeGuardError(
                "the loss does not depend on any parameter",
                hint="it must be computed from the model's output, without detaching",
            )
        # The last boundary gets its gradient even if the loss uses none of it.
        total: Tensor = loss + (token * 0).to(loss)
        return total

    def _modules(self) -> list[nn.Module]:
        parts = (self._loss_fn, self._program)
        return [part for part in parts if isinstance(part, nn.Module)]


def _refuse_parameters(module: nn.Module) -> None:
    names = [name for name, _ in module.named_parameters()]
    if names:
        raise EmitError(
            f"the loss ({type(module).__name__}) has parameters: {', '.join(names)}; "
            "only the last stage's copy of them would be trained, and no "
            "checkpoint would hold it",
            hint="make them part of the model, and let the model return the loss",
        )


def _own_loss(output: Any) -> Tensor:
    """Return the loss that the model itself computed."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif not isinstance(output, Tensor):
        found = getattr(output, "loss", output)
    return _scalar(found, "the model returned")


def _scalar(value: Any, who: str) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    if isinstance(value, Tensor):
        found = f"a tensor of shape {tuple(value.shape)}"
    else:
        found = "no loss" if value is None else f"a {type(value).__name__}"
    raise RuntimeGuardError(
        f"{who} {found}, not a scalar loss",
        hint="pass loss_fn=, a function of (output, labels) that returns a scalar, "
        "or give the model its labels",
    )
