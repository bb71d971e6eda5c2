"""A step of a ``LightningModule`` as a forward that can be recorded."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partitioner.capture.fakes import model_device
from partitioner.errors import OptionError
from partitioner.lightning.stand_ins import NoIndex, NoTrainer, metrics_refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partitioner.lightning.batches import BatchLayout

__all__ = ["RecordedStep"]

_LOGGED, _RESULT = "log:", "out:"
_VALUE = ("self", "name", "value")
_MEANS = ("mean", torch.mean)


class RecordedStep:
    """``training_step``, ``validation_step`` or ``test_step``.

    The module itself is recorded, with the step in place of its forward, so that
    every parameter has the name that it has in the module.

    Args:
        module: The ``LightningModule``.
        name: Of the step.
        layout: How its batches are built.
        arguments: What the step takes after the batch: the batch's number, perhaps the
            loader's.
    """

    def __init__(
        self, module: Any, name: str, layout: BatchLayout, arguments: tuple[Any, ...]
    ) -> None:
        self.module, self.name, self.layout = module, name, layout
        self.trains = name == "training_step"
        self._arguments = tuple(
            NoIndex(name) if index == 0 else value
            for index, value in enumerate(arguments)
        )
        self.logged: dict[str, dict[str, Any]] = {}
        """Name of each logged value → the arguments that it was logged with."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the module's forward be the step, for ``partition()``."""
        module = self.module
        device = model_device(module)
        places: list[tuple[Any, str, Any]] = [
            (each, key, value)
            for each in module.modules()
            for key, value in (
                ("_trainer", NoTrainer(vars(each).get("_trainer"), self.name)),
                ("_device", device),
            )
            if key in vars(each)
        ]
        places += [(module, "forward", self._forward), (module, "log", self._log)]
        missing = object()
        before = [vars(each).get(key, missing) for each, key, _ in places]
        for each, key, value in places:
            vars(each)[key] = value
        try:
            with metrics_refused(module, self.name):
                yield
        finally:
            for (each, key, _), value in zip(places, before, strict=True):
                if value is missing:
                    vars(each).pop(key, None)
                else:
                    vars(each)[key] = value

    def _forward(self, **leaves: Any) -> dict[str, Any]:
        """Run the step on one micro-batch; return all that it gives."""
        module = self.module
        self._values: dict[str, Tensor] = {}
        self.logged.clear()
        forward = vars(module).pop("forward")  # the step calls the module's own
        try:
            step = getattr(module, self.name)
            result = step(self.layout.rebuild(leaves), *self._arguments)
        finally:
            vars(module)["forward"] = forward
        if self.trains:
            result = _training_result(result)
        return {"logged": dict(self._values), "result": result}

    def _log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Stand in for the module's ``log``: the value becomes an output."""
        signature = inspect.signature(type(self.module).log)
        given = signature.bind(self.module, name, value, *args, **options).arguments
        options = {k: v for k, v in given.items() if k not in _VALUE}
        if not isinstance(value, Tensor):
            raise OptionError(
                f"self.log({name!r}, …) in {self.name} gets a {type(value).__name__}: "
                "the step is recorded, and it would be the same at every batch",
                hint="log tensors that the step computes; numbers and metrics in a "
                "hook, such as on_train_batch_end or on_validation_batch_end",
            )
        if value.numel() != 1:
            raise OptionError(
                f"self.log({name!r}, …) in {self.name} gets a tensor of shape "
                f"{tuple(value.shape)}",
                hint="log a scalar: its mean, say",
            )
        if options.get("reduce_fx", "mean") not in _MEANS:
            raise OptionError(
                f"self.log({name!r}, …, reduce_fx={options['reduce_fx']!r}) in "
                f"{self.name}: the value of a batch is the mean over its micro-batches",
                hint="log means, or log in a hook what is summed up",
            )
        if name in self.logged:
            raise OptionError(f"{self.name} logs {name!r} twice", hint="rename one")
        # The size of a batch is known where it is logged.
        options.pop("batch_size", None)
        self.logged[name] = options
        self._values[name] = value.detach().reshape(())

    def loss(self, output: Mapping[str, Any], _labels: Any) -> Any:
        """Return the loss of a micro-batch and all that is reported beside it."""
        result = dict(output["result"])
        named = {f"{_LOGGED}{name}": value for name, value in output["logged"].items()}
        named |= {f"{_RESULT}{name}": value for name, value in result.items()}
        return named.pop(f"{_RESULT}loss"), named

    def replay(self, values: Mapping[str, Any], samples: int) -> None:
        """Log the values of a whole batch, on this rank.

        Args:
            values: By the names that they were logged under.
            samples: In the batch, of this replica.
        """
        for name, options in self.logged.items():
            self.module.log(name, values[name], batch_size=samples, **options)

    @staticmethod
    def reported(
        losses: Mapping[str, Any] | None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what was logged and what else was returned, from a report."""
        found = dict(losses or {})
        return (
            {n.removeprefix(_LOGGED): v for n, v in found.items() if n[:4] == _LOGGED},
            {n.removeprefix(_RESULT): v for n, v in found.items() if n[:4] == _RESULT},
        )


def _training_result(result: Any) -> dict[str, Any]:
    """Return what a training step returned as ``{"loss": …}`` and further scalars."""
    if isinstance(result, Tensor):
        result = {"loss": result}
    if not isinstance(result, dict) or not isinstance(result.get("loss"), Tensor):
        found = (
            "None" if result is None else f"a {type(result).__name__} without 'loss'"
        )
        raise OptionError(
            f"training_step returns {found}",
            hint='return the loss, or {"loss": loss, …}; a step that skips batches '
            "cannot be recorded",
        )
    for name, value in result.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = (
                f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else f"a {type(value).__name__}"
            )
            raise OptionError(
                f"training_step returns {shown} as {name!r}: scalars alone come back "
                "from the last stage",
                hint="return its mean, or leave it out",
            )
    return {
        name: value if name == "loss" else value.detach()
        for name, value in result.items()
    }
