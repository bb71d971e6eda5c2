"""Let the DeepSpeed that is installed read a configuration, and watch what it does.

Which keys exist, which values are allowed and which features are gone differ between
versions. So nothing of this is written down here: each entry is read by DeepSpeed's own
configuration, alone, from dictionaries that note which keys it asks for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from deepspeed.runtime.precision_config import (
    BFLOAT16,
    BFLOAT16_OLD,
    FP16,
    get_bfloat16_config,
    get_float16_config,
)
from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION, get_zero_config
from deepspeed.utils import logger
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Reading",
    "Refusal",
    "known_keys",
    "parsed",
    "read_sections",
    "read_whole",
]

_ALONE = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
"""What DeepSpeed wants before it reads anything else."""

_BY_INITIALIZE = ("sequence_parallel_size", "data_parallel_size")
"""Keys that ``deepspeed.initialize`` reads itself, before the configuration."""

_REFUSALS = (
    AssertionError,
    AttributeError,
    DeepSpeedConfigError,
    KeyError,
    TypeError,
    ValueError,
)
"""What DeepSpeed's reading of a wrong value can raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why DeepSpeed does not take an entry."""

    path: tuple[str, ...]
    reason: str
    kind: str
    """``key``: no such key; ``gone``: not any more; ``value``: not this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What DeepSpeed does with one entry of the configuration."""

    known: bool
    unread: tuple[str, ...]
    """Keys of a section that nobody asked for."""
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...]


class _OneEntry(DeepSpeedConfig):  # type: ignore[misc]
    """A reading that leaves out what entries must be to each other."""

    def _do_sanity_check(self) -> None:
        """Do nothing: the other entries are not there."""


class _Watched(dict[str, Any]):
    """A dictionary that notes which keys are asked for."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        # Not dict's own: ** then takes the keys one by one, through __getitem__.
        return iter(list(super().keys()))

    def __copy__(self) -> _Watched:
        return self

    def __deepcopy__(self, _memo: object) -> dict[str, Any]:
        return dict(self.items())

    def items(self) -> Any:
        """Take all keys as asked for: whoever goes through them reads them all."""
        return {key: self[key] for key in self}.items()

    def get(self, key: str, default: Any = None) -> Any:
        """Note the key."""
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        """Return a view whose questions are noted."""
        return _Keys(self)


class _Keys:
    """The keys of a watched dictionary."""

    def __init__(self, owner: _Watched) -> None:
        self._owner = owner

    def __contains__(self, key: object) -> bool:
        return key in self._owner

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner)

    def __len__(self) -> int:
        return len(self._owner)


@cache
def known_keys() -> frozenset[str]:
    """Return the keys at the top of a configuration that DeepSpeed asks for.

    Also those of features that are gone: it asks for these in order to refuse them.
    """
    watched = _Watched(_ALONE)
    with _collected():
        DeepSpeedConfig(watched)
    return frozenset(watched.asked | {*_BY_INITIALIZE})


def read_sections(config: Mapping[str, Any]) -> dict[str, Reading]:
    """Let DeepSpeed read every entry alone; return what it did by key."""
    known = known_keys()
    return {
        key: _read(key, value, known=key in known)
        for key, value in config.items()
        if key not in _ALONE
    }


def read_whole(config: Mapping[str, Any]) -> str:
    """Let DeepSpeed read all of it; return what it says, or "" if it takes it."""
    with _collected():
        try:
            DeepSpeedConfig(_plain(config))
        except _REFUSALS as error:
            return _reason(error)
    return ""


def parsed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose precision and ZeRO are what DeepSpeed makes of them.

    It takes ``"stage": "2"`` for 2 and ``"enabled": "no"`` for false, and the section
    ``bfloat16`` for ``bf16``. Sections that it refuses stay as they are.
    """
    result = dict(config)
    if BFLOAT16 not in result and BFLOAT16_OLD in result:
        result[BFLOAT16] = result[BFLOAT16_OLD]
    with _collected():
        for key, read in _MODELS.items():
            section = result.get(key)
            if isinstance(section, Mapping):
                result[key] = _parsed(key, _plain(section), read)
    return result


_MODELS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    BFLOAT16: get_bfloat16_config,
    FP16: get_float16_config,
    ZERO_OPTIMIZATION: get_zero_config,
}


def _parsed(
    key: str, section: dict[str, Any], read: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    try:
        found = read({key: dict(section)})
    except _REFUSALS:
        return section
    return {
        name: value if isinstance(value, dict) else getattr(found, name, value)
        for name, value in section.items()
    }


def _read(key: str, value: Any, *, known: bool) -> Reading:
    inner = _Watched(_plain(value)) if isinstance(value, Mapping) else None
    alone = {**_ALONE, key: value if inner is None else inner}
    if key == "train_batch_size":
        alone = {key: value}
    refusals: tuple[Refusal, ...] = ()
    with _collected() as warnings:
        try:
            _OneEntry(_Watched(alone))
        except ValidationError as error:
            refusals = tuple(_invalid(key, error))
        except _REFUSALS as error:
            gone = isinstance(error, DeepSpeedConfigError) and "removed" in str(error)
            kind = "gone" if gone else "value"
            reason = _reason(error)
            refusals = (Refusal(path=(key,), reason=reason, kind=kind),)
    # A section that goes to a model of pydantic's as it is: that forbids other keys.
    looked_into = inner is not None and bool(inner.asked) and not refusals
    unread = _unread(inner) if inner is not None and looked_into else ()
    return Reading(
        known=known, unread=unread, refusals=refusals, warnings=tuple(warnings)
    )


def _unread(inner: _Watched) -> tuple[str, ...]:
    return tuple(key for key in inner if key not in inner.asked)


def _invalid(key: str, error: ValidationError) -> Iterable[Refusal]:
    for entry in error.errors():
        inside = tuple(str(part) for part in entry["loc"])
        path = inside if inside[:1] == (key,) else (key, *inside)
        kind = "key" if entry["type"] == "extra_forbidden" else "value"
        yield Refusal(path=path, reason=entry["msg"], kind=kind)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _plain(value: Any) -> Any:
    """Return nested mappings as dictionaries of their own: DeepSpeed changes some."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@contextmanager
def _collected() -> Iterator[list[str]]:
    """Take what DeepSpeed logs; yield its warnings."""
    found: list[str] = []

    class _Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                found.append(record.getMessage().partition("\n")[0])

    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Collect()], False
    try:
        yield found
    finally:
        logger.handlers, logger.propagate = handlers, propagate
