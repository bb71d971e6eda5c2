"""What a step sees in place of what changes from batch to batch, while it is recorded.

A recording is made once. A number of the batch or of the epoch that Python reads would
be the recording's for ever: so reading it is an error that says so.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

__all__ = ["NoIndex", "NoTrainer", "metrics_of", "metrics_refused"]

_SAME_ALWAYS = frozenset({
    "accumulate_grad_batches", "barebones", "devices", "max_epochs", "max_steps",
    "min_epochs", "min_steps", "num_devices", "num_nodes", "precision", "world_size",
})  # fmt: skip
_HINT = (
    "keep it in a buffer that a hook sets before the step (on_train_batch_start), or "
    "move what depends on it into a hook"
)


class NoTrainer:
    """Stands for the trainer: what never changes can be read of it, nothing else.

    Args:
        trainer: The real one.
        step: The step's name.
    """

    def __init__(self, trainer: Any, step: str) -> None:
        self._trainer, self._step = trainer, step

    def __getattr__(self, name: str) -> Any:
        """Return what is the same at every batch."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SAME_ALWAYS:
            return getattr(self._trainer, name)
        flags = {"training": "training_step", "testing": "test_step"}
        flags["validating"] = "validation_step"
        if name in flags:
            return flags[name] == self._step
        raise OptionError(
            f"{self._step} reads the trainer's {name!r}: the step is recorded once, "
            "and this value would stay as it is now",
            hint=_HINT,
        )


class NoIndex(int):
    """Stands for ``batch_idx``: it can be passed on, and not be used.

    Args:
        step: The step's name.
    """

    _step: str

    def __new__(cls, step: str) -> NoIndex:
        """Make one."""
        made = super().__new__(cls, 0)
        made._step = step
        return made


def _refuse(self: NoIndex, *_: Any) -> NoReturn:
    raise OptionError(
        f"{self._step} uses batch_idx: the step is recorded once, and the number would "
        "be that of the first batch for ever",
        hint=_HINT,
    )


for _operation in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod", "floordiv", "truediv",
    "rfloordiv", "rtruediv", "pow", "eq", "ne", "lt", "le", "gt", "ge", "bool", "int",
    "float", "index", "neg", "divmod", "str", "format",
):  # fmt: skip
    setattr(NoIndex, f"__{_operation}__", _refuse)


def metrics_of(module: nn.Module) -> list[Any]:
    """Return the metrics of torchmetrics that a module holds."""
    kind: Any = getattr(sys.modules.get("torchmetrics"), "Metric", None)
    return [m for m in module.modules() if kind is not None and isinstance(m, kind)]


@contextmanager
def metrics_refused(module: nn.Module, step: str) -> Iterator[None]:
    """Let metrics that count over batches raise if the step calls them.

    Args:
        module: Whose metrics they are.
        step: The step's name.

    Raises:
        OptionError: In the step.
    """
    metrics = metrics_of(module)

    def refuser(name: str) -> Callable[..., Any]:
        def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
            raise OptionError(
                f"{step} updates the metric {name}, which counts over batches on one "
                "rank: the step runs in parts on several",
                hint="return what it needs and update it in on_validation_batch_end, "
                "or log a value that torchmetrics.functional computes",
            )

        return refuse

    kept = [
        (m, key, vars(m).get(key)) for m in metrics for key in ("forward", "update")
    ]
    for metric, key, _ in kept:
        vars(metric)[key] = refuser(type(metric).__name__)
    try:
        yield
    finally:
        for metric, key, value in kept:
            if value is None:
                vars(metric).pop(key, None)
            else:
                vars(metric)[key] = value
