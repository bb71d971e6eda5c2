"""The loss on the last stage: the model's tail that needs labels, and the loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.pipe import LayerSpec
from torch import Tensor, nn

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.segment import SegmentBody, SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.runtime.labels import LabelsLayout

__all__ = ["Evaluation", "LossHead", "LossLayer"]


@dataclass(kw_only=True)
class Evaluation:
    """What the loss does while the engine evaluates.

    Args:
        keeps_outputs: Keep the leaves of the model's output of every micro-batch.
        computes_loss: Else the loss is 0.
    """

    keeps_outputs: bool
    computes_loss: bool
    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    """What :meth:`LossHead.rebuild` takes, in the order of the micro-batches."""


class LossLayer(nn.Module):
    """The last layer of a pipeline whose loss has parameters of its own.

    It hands its input on. That it holds the loss makes DeepSpeed train, clip and save
    the parameters with those of the last stage.

    Args:
        loss_fn: The user's loss.
    """

    def __init__(self, loss_fn: nn.Module) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, received: Any) -> Any:
        """Return what the segment before has sent."""
        return received


class LossHead:
    """What DeepSpeed calls as ``loss_fn(outputs, labels)``.

    Not an ``nn.Module``: DeepSpeed would register it on every stage.

    Args:
        loss_fn: The user's ``loss_fn(output, labels)``, which returns a scalar, or
            ``(scalar, {name: scalar})`` or ``{"loss": scalar, name: scalar}`` to
            report further losses; None takes the loss that the model itself returns.
        body: The operations that need late inputs: from all values of the last
            segment, then the late inputs, to the leaves of the model's output.
            None if the values are those leaves.
        rebuild: Makes the model's output from its leaves.
        labels: Tells late inputs and the user's labels apart.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Any] | None,
        body: SegmentBody | None,
        rebuild: Callable[[Sequence[Any]], Any],
        labels: LabelsLayout,
    ) -> None:
        self.loss_fn = loss_fn
        self.body = body
        self.labels = labels
        self.additional: dict[str, Tensor] = {}
        """Further losses of the last micro-batch, detached, by name."""
        self.weights: deque[float] = deque()
        """What to multiply the next micro-batches' losses with; empty: nothing."""
        self.evaluation: Evaluation | None = None
        """Set while the engine evaluates."""
        self.gradient_hook: Callable[[Tensor], Tensor] | None = None
        """Changes the gradient with which backward starts."""
        self.watch: Callable[[Tensor], None] | None = None
        """Looks at every loss in training."""
        self._program = None if body is None else SegmentProgram(body)
        self._rebuild = rebuild

    @property
    def program(self) -> SegmentProgram | None:
        """The model's own part, if there is one."""
        return self._program

    def layer_specs(self) -> list[LayerSpec]:
        """Return the layer that holds the loss's parameters, if it has any."""
        loss_fn = self.loss_fn
        if (
            isinstance(loss_fn, nn.Module)
            and next(loss_fn.parameters(), None) is not None
        ):
            return [LayerSpec(LossLayer, loss_fn)]
        return []

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

    def compile(self, *args: Any, **options: Any) -> None:
        """Run the model's own loss part under ``torch.compile``; not ``loss_fn``.

        Args:
            *args: For ``torch.compile``.
            **options: For ``torch.compile``.
        """
        if self._program is not None:
            self._program.compile(*args, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffers of the model that this part holds, by original name."""
        return {} if self._program is None else dict(self._program.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace the buffers of the model that this part holds."""
        if self._program is not None:
            self._program.load_state_dict(state_dict)

    def user_loss_state(self) -> dict[str, Any] | None:
        """Return the state of the user's loss; None: none, or a layer holds it."""
        own = self.loss_fn
        if not isinstance(own, nn.Module) or self.layer_specs():
            return None
        return dict(own.state_dict())

    def load_user_loss_state(self, state_dict: Mapping[str, Any] | None) -> None:
        """Replace the state of the user's loss."""
        if isinstance(self.loss_fn, nn.Module) and state_dict is not None:
            self.loss_fn.load_state_dict(state_dict)

    def leaves(self, values: Sequence[Any], late: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the leaves of the model's output.

        Args:
            values: The values of the last segment.
            late: The inputs that only this part uses.
        """
        return tuple(values) if self._program is None else self._program(*values, *late)

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Return the model's output from what :meth:`leaves` returned."""
        return self._rebuild(leaves)

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
        late, targets = self.labels.split(labels)
        leaves = self.leaves(values, late)
        if self.evaluation is not None:
            if self.evaluation.keeps_outputs:
                self.evaluation.outputs.append(leaves)
            if not self.evaluation.computes_loss:
                return torch.zeros((), device=token.device)
        loss = self._weighted(*self._losses(self.rebuild(leaves), targets))
        if self.watch is not None and torch.is_grad_enabled():
            self.watch(loss)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise RuntimeGuardError(
                "the loss does not depend on any parameter",
                hint="it must be computed from the model's output, without detaching",
            )
        # The last boundary gets its gradient even if the loss uses none of it.
        total: Tensor = loss + (token * 0).to(loss)
        if self.gradient_hook is not None and total.requires_grad:
            total.register_hook(self.gradient_hook)
        return total

    def _losses(self, output: Any, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss to train by, and what is to be reported beside it."""
        if self.loss_fn is None:
            return _own_losses(output)
        made = self.loss_fn(output, targets)
        if isinstance(made, Mapping):
            rest = {name: value for name, value in made.items() if name != "loss"}
            return _scalar(made.get("loss"), 'loss_fn returned under "loss"'), _named(
                rest
            )
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):  # noqa: PLR2004 - (loss, further losses)
            return _scalar(made[0], "loss_fn returned"), _named(made[1])
        return _scalar(made, "loss_fn returned"), {}

    def _weighted(self, loss: Tensor, further: Mapping[str, Tensor]) -> Tensor:
        """Multiply with the micro-batch's weight, and note the further losses."""
        weight = self.weights.popleft() if self.weights else 1.0
        # A mean over no token at all is 0/0, and so is its gradient.
        self.additional = {
            name: value.detach().float() * weight if weight else torch.zeros_like(value)
            for name, value in further.items()
        }
        if weight == 1.0:
            return loss
        return loss * weight if weight else loss.new_zeros((), requires_grad=True)

    def _modules(self) -> list[nn.Module]:
        parts = (self.loss_fn, self._program)
        return [part for part in parts if isinstance(part, nn.Module)]


def _own_losses(output: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss that the model itself computed, and others that it names."""
    if not isinstance(output, Mapping):
        found = (
            output if isinstance(output, Tensor) else getattr(output, "loss", output)
        )
        return _scalar(found, "the model returned"), {}
    further = {
        name: value.reshape(())
        for name, value in output.items()
        if name != "loss" and "loss" in name and _is_scalar(value)
    }
    return _scalar(output.get("loss"), "the model returned"), further


def _named(losses: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {
        str(name): _scalar(value, f"loss_fn returned under {name!r}")
        for name, value in losses.items()
    }


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _scalar(value: Any, who: str) -> Tensor:
    if isinstance(value, Tensor) and _is_scalar(value):
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
