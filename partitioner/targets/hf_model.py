"""A configuration of transformers → its model, on ``meta`` or with random weights."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import torch

from partitioner.errors import TargetError
from partitioner.targets.configuration import library, read_configuration
from partitioner.targets.failures import first_line
from partitioner.targets.hf_inputs import make_inputs
from partitioner.targets.target import Target

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from torch import nn

    from partitioner.targets.target import HuggingFaceOptions

__all__ = ["build_target"]

_DEFAULT = "AutoModelForCausalLM"
_SHOWN = 6
"""Classes that a hint lists."""


def build_target(
    place: str, file: Path, options: HuggingFaceOptions, *, weights: bool
) -> Target:
    """Build a model from its configuration alone, with a micro-batch for it.

    Args:
        place: The target as typed.
        file: Its ``config.json``.
        options: The class and the sizes that were asked for.
        weights: Initialise the model on the CPU; otherwise nothing is allocated.

    Raises:
        TargetError: The configuration, the class or the sizes are not usable.
    """
    config = read_configuration(place, file)
    name, why = _class_name(config, file, options.hf_class, library(place))
    model = _built(getattr(library(place), name), config, file, weights=weights)
    made = "random weights" if weights else "no weights"
    said = [f"model: {type(model).__name__}, {why}, with {made}"]
    if getattr(config, "quantization_config", None):
        dtype = str(model.dtype).removeprefix("torch.")
        said.append(
            f"quantization: {file.name}'s is left out; the weights count as {dtype}"
        )
    inputs, notes = make_inputs(model, options)
    return Target(
        name=f"{place} ({type(model).__name__})",
        model=model,
        example_inputs=inputs,
        notes=(*said, *notes),
    )


def _class_name(
    config: Any, file: Path, asked: str | None, transformers: ModuleType
) -> tuple[str, str]:
    """Return the class to build, and why this one."""
    if asked:
        if _is_model(getattr(transformers, asked, None)):
            return asked, "by --hf-class"
        message = f"transformers {transformers.__version__} has no model class {asked}"
        near = difflib.get_close_matches(asked, dir(transformers), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else _choices(config)
        raise TargetError(message, hint=hint)
    named = list(config.architectures or ())
    if not named:
        _check_default(config, file, transformers)
        return _DEFAULT, f"taken as a causal LM, as {file.name} has no architectures"
    if _is_model(getattr(transformers, named[0], None)):
        first = "the first of the" if len(named) > 1 else "from the"
        return named[0], f"{first} architectures in {file.name}"
    version = transformers.__version__
    message = f"{file} names {named[0]}, which transformers {version} does not have"
    raise TargetError(message, hint=_choices(config))


def _is_model(found: Any) -> bool:
    """Tell a class that makes a model of a configuration from all others."""
    return (
        isinstance(found, type)
        and hasattr(found, "from_pretrained")
        and (hasattr(found, "_model_mapping") or hasattr(found, "main_input_name"))
    )


def _check_default(config: Any, file: Path, transformers: ModuleType) -> None:
    if _takes(getattr(transformers, _DEFAULT), config):
        return
    message = (
        f"{file} has no architectures, and there is no causal LM of its kind, "
        f"{config.model_type}"
    )
    raise TargetError(message, hint=_choices(config))


def _choices(config: Any) -> str:
    """List what this configuration can be built as."""
    transformers = library(config.model_type)
    names = (name for name in dir(transformers) if name.startswith("AutoModel"))
    fit = [name for name in names if _takes(getattr(transformers, name), config)]
    shown = ", ".join(fit[:_SHOWN]) + (", …" if len(fit) > _SHOWN else "")
    if not fit:
        return "write a model.py whose build_model() returns the model"
    return (
        f"choose the class: --hf-class {fit[0]}"
        if len(fit) == 1
        else (f"choose the class with --hf-class: {shown}")
    )


def _takes(auto: Any, config: Any) -> bool:
    """Whether an Auto class has a model for this kind of configuration."""
    mapping = getattr(auto, "_model_mapping", None)
    return mapping is not None and type(config) in mapping


def _built(kind: Any, config: Any, file: Path, *, weights: bool) -> nn.Module:
    config = _own_part(kind, config)
    device = "cpu" if weights else "meta"
    if hasattr(kind, "_model_mapping"):
        make = kind.from_config
    else:
        _check_kind(kind, config, file)
        # What every from_config of transformers ends in; it alone honours the dtype.
        make = kind._from_config  # noqa: SLF001
    try:
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(0)  # random weights are the same in every run
            model: nn.Module = make(config)
    except Exception as error:  # whatever a model's own checks raise
        message = f"{kind.__name__} cannot be built from {file}: {first_line(error)}"
        raise TargetError(message, hint=_choices(config)) from error
    return model


def _own_part(kind: Any, config: Any) -> Any:
    """Return the text part of a configuration for a class that takes only that."""
    wanted = getattr(kind, "config_class", None)
    text = getattr(config, "text_config", None)
    if wanted and not isinstance(config, wanted) and isinstance(text, wanted):
        return text
    return config


def _check_kind(kind: Any, config: Any, file: Path) -> None:
    wanted = kind.config_class
    if wanted is None or isinstance(config, wanted):
        return
    message = (
        f"{kind.__name__} takes a {wanted.__name__}, and {file} is a "
        f"{type(config).__name__}"
    )
    raise TargetError(message, hint=_choices(config))
