"""What a pipeline cannot do for a Trainer: refused at the start, with what to do."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partitioner.lightning.library import Library

__all__ = [
    "check_device",
    "check_fit",
    "check_options",
    "check_precision",
    "check_world",
]

_HOOKS = (
    "backward", "configure_gradient_clipping", "on_after_backward",
    "on_before_backward", "on_before_optimizer_step", "optimizer_zero_grad",
)  # fmt: skip
"""What Lightning calls between forward and step, which the engine runs as one."""
_WHOLE_MODEL = (
    "BaseFinetuning", "ModelPruning", "StochasticWeightAveraging", "WeightAveraging",
)  # fmt: skip
_PRECISIONS = ("32-true", "bf16-true")


def check_precision(precision: str) -> None:
    """Refuse a precision that a pipeline does not train in.

    Raises:
        OptionError: It is one.
    """
    if precision not in _PRECISIONS:
        raise OptionError(
            f"Trainer(precision={precision!r}) is not possible in a pipeline",
            hint=f"{' or '.join(map(repr, _PRECISIONS))}: mixed precision casts inside "
            "the stages, after the boundaries were recorded",
        )


_OTHERS = {
    "example_labels": "the step takes its labels from the batch",
    "loss_fn": "training_step returns the loss",
    "replicas": "Trainer(devices=…) decides",
    "schedule": "1F1B runs, or ZB-H1 by initialize={'zero_bubble': True}",
    "example_inputs": "give example_batch=, a batch as the loader yields it",
    "dtype": "Trainer(precision=…) decides",
    "optimizer": "configure_optimizers decides",
}


_INITIALIZE = ("check_finite", "cuda_graphs", "module", "zero_bubble")


def check_options(options: Mapping[str, Any], initialize: Mapping[str, Any]) -> None:
    """Refuse options that are decided elsewhere.

    Args:
        options: Of ``partition()``.
        initialize: Of ``plan.initialize``.

    Raises:
        OptionError: There is one.
    """
    for name in set(initialize) - set(_INITIALIZE):
        raise OptionError(
            f"PipelineStrategy(initialize={{{name!r}: …}})",
            hint=f"{', '.join(_INITIALIZE)} are possible; the module decides the rest",
        )
    for name, hint in _OTHERS.items():
        if name in options and options[name] != "1f1b":
            raise OptionError(f"PipelineStrategy({name}={options[name]!r})", hint=hint)


def check_world(processes: int, stages: int) -> None:
    """Refuse a number of processes that is no multiple of the stages.

    Raises:
        OptionError: It is not.
    """
    if processes % stages:
        raise OptionError(
            f"{processes} processes for {stages} stages",
            hint=f"Trainer(devices={stages}), or a multiple of it",
        )


def check_device(accelerator: str, deepspeed: str) -> None:
    """Refuse a Trainer on another kind of device than DeepSpeed.

    Args:
        accelerator: The type of the Trainer's device.
        deepspeed: The type of DeepSpeed's.

    Raises:
        OptionError: They differ.
    """
    if accelerator != deepspeed:
        raise OptionError(
            f"the Trainer's device is of type {accelerator!r}, DeepSpeed's of type "
            f"{deepspeed!r}",
            hint=f"set DS_ACCELERATOR={accelerator} in the environment, or choose "
            "another accelerator= of the Trainer",
        )


def check_fit(trainer: Any, module: Any, library: Library) -> None:
    """Refuse what training in a pipeline cannot do.

    Raises:
        OptionError: The Trainer, the module or a callback asks for it.
    """
    _check_module(module)
    _check_trainer(trainer)
    overridden = library.part("utilities.model_helpers.is_overridden")
    for owner in (module, *trainer.callbacks):
        for hook in _HOOKS:
            if overridden(hook, owner):
                raise OptionError(
                    f"{type(owner).__name__} has {hook}: the engine runs forward, "
                    "backward and step of a whole batch at once, and there is no "
                    "moment for it",
                    hint="use on_train_batch_start or on_train_batch_end; clip by "
                    "Trainer(gradient_clip_val=…); the norm of the gradients is "
                    "trainer.strategy.engine.get_global_grad_norm()",
                )
    for callback in trainer.callbacks:
        names = {each.__name__ for each in type(callback).__mro__}
        if names & set(_WHOLE_MODEL):
            raise OptionError(
                f"the callback {type(callback).__name__} needs the whole model in one "
                "process",
                hint="leave it out",
            )


def _check_module(module: Any) -> None:
    if not module.automatic_optimization:
        raise OptionError(
            f"{type(module).__name__} optimizes manually",
            hint="leave automatic_optimization True: the engine runs backward and step",
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise OptionError(
            "training_step takes dataloader_iter",
            hint="let it take a batch, which the engine cuts into micro-batches",
        )


def _check_trainer(trainer: Any) -> None:
    if trainer.accumulate_grad_batches != 1:
        raise OptionError(
            f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): a "
            "batch is one step here, and is accumulated over its micro-batches",
            hint="give the loader so many times larger batches, and the strategy so "
            "many times more micro_batches",
        )
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
        raise OptionError(
            "Trainer(gradient_clip_algorithm='value')",
            hint="DeepSpeed clips by the norm of all gradients: 'norm'",
        )
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        raise OptionError(
            "Trainer(sync_batchnorm=True): each replica counts its own batches",
            hint="leave it out",
        )
