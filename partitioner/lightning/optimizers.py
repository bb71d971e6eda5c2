"""What ``configure_optimizers`` returned, for the parameters of one stage."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

__all__ = ["StageOptimizer"]

_PRICED = {"Adam": "adam", "AdamW": "adamw"}


class StageOptimizer:
    """The user's own optimizer, over what one stage holds of its groups.

    The object stays the one that the schedulers know: its groups lose the parameters
    of other stages. A group of which a stage has nothing keeps a placeholder.

    Args:
        optimizer: Of the whole model's parameters, as the user made it.
        module: The model, for names.

    Raises:
        OptionError: It holds parameters that are not the model's, or runs the model
            itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        _check_step(optimizer)
        self.optimizer = optimizer
        names = {id(p): name for name, p in module.named_parameters()}
        for group in optimizer.param_groups:
            foreign = [p for p in group["params"] if id(p) not in names]
            if foreign:
                raise OptionError(
                    f"the optimizer of configure_optimizers holds a parameter of shape "
                    f"{tuple(foreign[0].shape)} that is not the module's",
                    hint="make it an attribute of the LightningModule",
                )
        self._names = [
            [names[id(p)] for p in group["params"]] for group in optimizer.param_groups
        ]
        taken = {name for group in self._names for name in group}
        self.left_out = [
            p for name, p in module.named_parameters()
            if name not in taken and p.requires_grad
        ]  # fmt: skip
        """Parameters that nothing trains: they are to be frozen before recording."""

    @property
    def priced_as(self) -> str:
        """What ``partition()`` calls an optimizer that keeps as many states."""
        kind = type(self.optimizer).__name__
        if kind in _PRICED:
            return _PRICED[kind]
        momentum = self.optimizer.defaults.get("momentum")
        if kind == "SGD":
            return "sgd-momentum" if momentum else "sgd"
        return "adamw"

    def rules(self) -> list[dict[str, Any]]:
        """Return the groups as :func:`parameter_groups` takes them."""
        return [{"params": _among(names)} for names in self._names]

    def adopt(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimizer with these parameters in its groups.

        Args:
            groups: This stage's, one for each of the optimizer's.
        """
        for own, given in zip(self.optimizer.param_groups, groups, strict=True):
            own["params"] = list(given["params"])
        held = {id(p) for group in groups for p in group["params"]}
        for parameter in list(self.optimizer.state):
            if id(parameter) not in held:
                del self.optimizer.state[parameter]
        return self.optimizer

    def load(self, saved: Mapping[str, Any], module: nn.Module) -> None:
        """Take over the state of the whole model's optimizer, as one process saved it.

        Args:
            saved: The ``state_dict`` of the same optimizer.
            module: The model, for names.

        Raises:
            OptionError: It has other groups.
        """
        numbers = [group["params"] for group in saved["param_groups"]]
        if [len(each) for each in numbers] != [len(each) for each in self._names]:
            raise OptionError(
                f"the checkpoint's optimizer has groups of "
                f"{[len(each) for each in numbers]} parameters, this one of "
                f"{[len(each) for each in self._names]}",
                hint="configure_optimizers must return the optimizer that was saved",
            )
        number_of = {
            name: number
            for names, each in zip(self._names, numbers, strict=True)
            for name, number in zip(names, each, strict=True)
        }
        name_of = {id(p): name for name, p in module.named_parameters()}
        mine = self.optimizer.state_dict()
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        state = {}
        for index, parameter in enumerate(held):
            number = number_of.get(name_of.get(id(parameter), ""))
            if number in saved["state"]:
                state[index] = saved["state"][number]
        groups = [
            {**theirs, "params": own["params"]}
            for own, theirs in zip(
                mine["param_groups"], saved["param_groups"], strict=True
            )
        ]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise OptionError(
            f"{type(optimizer).__name__} runs forward and backward itself (closure)",
            hint="choose one that steps by gradients alone",
        )


def _among(names: Sequence[str]) -> Callable[[str, nn.Parameter], bool]:
    wanted = frozenset(names)
    return lambda name, _: name in wanted
