"""Keys and values, as the DeepSpeed that is installed reads them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

from partitioner.doctor.finding import REMOVED, Edit, Rule, Symptom
from partitioner.doctor.reading import known_keys, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

    from partitioner.doctor.case import Case

__all__ = ["RULES", "placeholder"]

_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    ("zero_optimization",): DeepSpeedZeroConfig,
    ("zero_optimization", "offload_optimizer"): DeepSpeedZeroOffloadOptimizerConfig,
    ("fp16",): DeepSpeedFP16Config,
    ("bf16",): DeepSpeedBF16Config,
}
"""Where a key may belong that stands in another place."""

_OWN_RULES = ("pipeline",)
"""Sections whose keys another family looks at."""

_ALIKE = 0.8
"""How alike two names must be for one to be a slip of the pen."""


def placeholder(value: Any) -> bool:
    """Whether a value is the "auto" that Hugging Face's Trainer replaces."""
    return isinstance(value, str) and value == "auto"


def _unknown(case: Case) -> Iterator[Symptom]:
    """Yield keys that DeepSpeed never asks for, at the top and in plain sections."""
    known = known_keys()
    for key, reading in case.readings.items():
        if not reading.known:
            yield _misplaced((key,), known, case, "DeepSpeed does not read this key")
        if key in _OWN_RULES:
            continue
        for inner in reading.unread if reading.known else ():
            why = f"DeepSpeed does not read this key in {key}"
            yield _misplaced((key, inner), (), case, why)


def _misplaced(
    path: tuple[str, ...], known: Iterable[str], case: Case, why: str
) -> Symptom:
    """Say where a key belongs, if that can be told."""
    *parents, key = path
    value = case.section(*parents).get(key)
    home, name = _home(key, tuple(parents), known)
    gone = Edit(path=path, value=REMOVED)
    edits: tuple[Edit, ...] = (gone,)
    if not name:
        return Symptom(where=".".join(path), why=why, change="take it out", edits=edits)
    target = (*home, name)
    if name not in case.section(*home):
        edits = (Edit(path=target, value=value), gone)
    return Symptom(
        where=".".join(path),
        why=why,
        change=f"it is called {'.'.join(target)}",
        edits=edits,
    )


def _home(
    key: str, parents: tuple[str, ...], known: Iterable[str]
) -> tuple[tuple[str, ...], str]:
    """Return the section and the name that a key was meant for; "" for none."""
    here = _names(_SECTIONS[parents]) if parents in _SECTIONS else set(known)
    near = get_close_matches(key, sorted(here), n=1, cutoff=_ALIKE)
    if near:
        return parents, near[0]
    for section, model in _SECTIONS.items():
        if key in _names(model) and key not in ("enabled", "device", "stage"):
            return section, key
    return parents, ""


def _names(model: type[BaseModel]) -> set[str]:
    fields = model.model_fields.items()
    return {field.alias or name for name, field in fields}


def _refused_keys(case: Case) -> Iterator[Symptom]:
    """Yield keys for which DeepSpeed stops: it forbids others in some sections."""
    for reading in case.readings.values():
        for refusal in reading.refusals:
            if refusal.kind == "key":
                why = f"DeepSpeed stops here: {refusal.reason}"
                yield _misplaced(refusal.path, (), case, why)


def _gone(case: Case) -> Iterator[Symptom]:
    for reading in case.readings.values():
        for refusal in reading.refusals:
            if refusal.kind == "gone":
                path = _named_in(refusal.reason, refusal.path, case)
                yield Symptom(
                    where=".".join(path),
                    why=f"DeepSpeed stops here: {refusal.reason}",
                    change="take it out",
                    edits=(Edit(path=path, value=REMOVED),),
                )


def _named_in(reason: str, path: tuple[str, ...], case: Case) -> tuple[str, ...]:
    """Return the entry inside a section that a message means, else the section."""
    inside = [key for key in case.section(*path) if f"{path[0]}.{key}" in reason]
    return (*path, inside[0]) if inside else path


def _refused_values(case: Case) -> Iterator[Symptom]:
    for key, reading in case.readings.items():
        for refusal in reading.refusals:
            if refusal.kind == "value" and not placeholder(case.config[key]):
                yield Symptom(
                    where=".".join(refusal.path),
                    why=f"DeepSpeed stops here: {refusal.reason}",
                    change="write another value",
                )


def _together(case: Case) -> Iterator[Symptom]:
    """Yield what DeepSpeed refuses only when it reads all entries."""
    alone = all(map(case.accepts, case.readings))
    both = all(case.section(key).get("enabled") for key in ("fp16", "bf16"))
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    sized = any(key in case.config for key in sizes)
    if not alone or both or not sized or any(map(placeholder, case.config.values())):
        return
    config = dict(case.config)
    if sizes[1] in config:  # the product depends on the number of processes
        config.pop(sizes[0], None)
    else:
        config[sizes[1]] = 1
        config.pop(sizes[0])
    reason = read_whole(config)
    if reason:
        yield Symptom(
            where="(the whole configuration)",
            why=f"each entry can be read, but DeepSpeed stops: {reason}",
            change="change one of the entries that it names",
        )


def _deprecated(case: Case) -> Iterator[Symptom]:
    for key, reading in case.readings.items():
        for warning in reading.warnings:
            if "deprecated" in warning:
                yield Symptom(
                    where=key,
                    why=f"DeepSpeed says: {warning}",
                    change="write the new key",
                )


def _twice(case: Case) -> Iterator[Symptom]:
    for key in dict.fromkeys(case.duplicates):
        yield Symptom(
            where=key,
            why="the file has this key more than once in one object, for which "
            "DeepSpeed stops",
            change="keep one of them (a corrected copy has the last)",
        )


def _automatic(case: Case) -> Iterator[Symptom]:
    """Yield "auto" where DeepSpeed itself does not know what it means."""
    for path, value in _leaves(case.config):
        plain = path[0] not in case.readings or path[0] in _AUTOMATIC
        if placeholder(value) and (len(path) == 1 or plain):
            yield Symptom(
                where=".".join(path),
                why='"auto" is for Hugging Face\'s Trainer, which puts a number in its '
                "place; DeepSpeed does not",
                change=_number_for(path, case),
                edits=_edit_for(path, case),
            )


_AUTOMATIC = ("optimizer", "scheduler")
"""Sections whose values DeepSpeed hands on as they are."""


def _number_for(path: tuple[str, ...], case: Case) -> str:
    edits = _edit_for(path, case)
    return f"write {edits[0].value}, as in the plan" if edits else "write a number"


def _edit_for(path: tuple[str, ...], case: Case) -> tuple[Edit, ...]:
    if not case.plan or path != ("gradient_accumulation_steps",):
        return ()
    return (Edit(path=path, value=int(case.plan["options"]["micro_batches"])),)


def _leaves(
    value: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


RULES = (
    Rule(code="unknown-key", severity="warning", look=_unknown),
    Rule(code="refused-key", severity="error", look=_refused_keys),
    Rule(code="removed-key", severity="error", look=_gone),
    Rule(code="refused-value", severity="error", look=_refused_values),
    Rule(code="refused-together", severity="error", look=_together),
    Rule(code="deprecated-key", severity="warning", look=_deprecated),
    Rule(code="duplicate-key", severity="error", look=_twice),
    Rule(code="auto-value", severity="error", look=_automatic),
)
