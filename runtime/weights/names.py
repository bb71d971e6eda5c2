"""A model's names → where a file has their values, under which names of its own."""

from __future__ import annotations

import importlib
import re
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from partitioner.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["Converted", "Origin", "match_names", "unused"]

# What wrappers put before the names of the model inside: data parallelism, compilation.
_WRAPPERS = re.compile(r"^(module\.)+|_orig_mod\.")
Renaming = tuple[str, str | None, Any]
"""The model's name, the pattern of the conversion if there is one, and itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Values that Hugging Face's library makes of several tensors of a file.

    Experts that are stored one by one, say, and are one parameter of the model.

    Args:
        conversion: The library's own description of it.
        first: The first of the names that it makes.
        sources: (pattern, key in the file) in the order in which it takes them.
    """

    conversion: Any
    first: str
    sources: list[tuple[str, str]]

    def make(self, name: str, read: Callable[[str], Tensor], model: nn.Module) -> Any:
        """Return the values of one name.

        Args:
            name: A name of the model's that it makes.
            read: Returns a tensor of the file.
            model: The whole model; conversions look at its configuration.

        Raises:
            WeightsError: The conversion failed, or made no such name.
        """
        conversion = deepcopy(self.conversion)
        for pattern, key in self.sources:
            conversion.add_tensor(self.first, key, pattern, read(key))
        keys = ", ".join(key for _, key in self.sources)
        try:
            made = conversion.convert(self.first, model=model, config=model.config)
            values = made[name]
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise WeightsError(
                f"{name!r} cannot be made of {keys} ({type(error).__name__}: {error})",
                hint="load the model before partition(), or save it again from a "
                "loaded model",
            ) from error
        return values[0] if isinstance(values, list) else values


Origin = str | Converted
"""A key of the file, or what is made of several."""


def match_names(model: nn.Module, keys: Iterable[str]) -> dict[str, Origin]:
    """Find each of a model's names among the keys of a file.

    As ``from_pretrained`` does: the renamings and conversions that the library keeps
    for this kind of model, then the base model's prefix, added or taken away.

    Args:
        model: The whole model, usually on ``meta``.
        keys: All keys of the file.

    Returns:
        Name → origin; names that the file does not have are left out.
    """
    names = _names(model)
    rename = _renaming(model, names)
    found: dict[str, Origin] = {}
    for key in sorted(keys, key=_natural):
        name, pattern, conversion = rename(key)
        if name not in names and key in names:
            name, pattern = key, None  # it has the model's own name already
        if pattern is None:
            # Its own name counts more than one that was made of another.
            if name == key or name not in found:
                found[name] = key
            continue
        made = found.get(name)
        if not isinstance(made, Converted):
            made = Converted(conversion=conversion, first=name, sources=[])
        made.sources.append((pattern, key))
        for target in conversion.target_patterns:
            found[name.replace(conversion.target_patterns[0], target)] = made
    return {name: origin for name, origin in found.items() if name in names}


def unused(
    model: nn.Module, keys: Iterable[str], found: Mapping[str, Origin]
) -> list[str]:
    """Return the keys of the file that no name of the model was found under.

    Less what the library says may be left over for this kind of model.
    """
    used: set[str] = set()
    for origin in found.values():
        if isinstance(origin, str):
            used.add(origin)
        else:
            used.update(key for _, key in origin.sources)
    expected = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return sorted(
        key
        for key in keys
        if key not in used and not any(re.search(p, key) for p in expected)
    )


def _names(model: nn.Module) -> dict[str, Tensor]:
    return dict(
        chain(
            model.named_parameters(remove_duplicate=False),
            model.named_buffers(remove_duplicate=False),
        )
    )


def _renaming(
    model: nn.Module, names: Mapping[str, Tensor]
) -> Callable[[str], Renaming]:
    """Return the function from a key of a file to the model's name."""
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    library = _library(model)
    if library is None:
        return lambda key: (_prefixed(key, prefix, names), None, None)
    loading, transforms = library
    renamings = [t for t in transforms if isinstance(t, loading.WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, loading.WeightConverter)]
    by_pattern = {p: each for each in converters for p in each.source_patterns}

    def rename(key: str) -> Renaming:
        name, pattern = loading.rename_source_key(
            _WRAPPERS.sub("", key), renamings, converters, prefix, names
        )
        if name not in names and pattern is None:
            name = _prefixed(key, prefix, names)
        return name, pattern, by_pattern.get(pattern)

    return rename


def _library(model: nn.Module) -> tuple[Any, Sequence[Any]] | None:
    """Return transformers' loading module, and its transforms for this model."""
    if not hasattr(model, "config") or not hasattr(model, "base_model_prefix"):
        return None
    try:
        loading = importlib.import_module("transformers.core_model_loading")
        mapping = importlib.import_module("transformers.conversion_mapping")
        utils = importlib.import_module("transformers.modeling_utils")
    except ImportError:
        return None  # before version 5 names were the model's own but for the prefix
    if not isinstance(model, utils.PreTrainedModel):
        return None
    return loading, mapping.get_model_conversion_mapping(model)


def _prefixed(key: str, prefix: str, names: Mapping[str, Tensor]) -> str:
    """Return the key without wrappers' prefixes, and with or without the model's."""
    bare = _WRAPPERS.sub("", key)
    choices = [key, bare]
    if prefix:
        choices += [f"{prefix}.{bare}", bare.removeprefix(f"{prefix}.")]
    return next((choice for choice in choices if choice in names), bare)


def _natural(key: str) -> list[tuple[int, str]]:
    """Sort ``layers.2`` before ``layers.10``."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")
    ]
