"""The zoo: every model, by name. Adding one is one entry in its family's table."""

from __future__ import annotations

from tests.zoo import (
    adapters,
    behaviour,
    causal,
    diffusion,
    encoders,
    forms,
    multimodal,
    recurrent,
    seq2seq,
    state,
    vision,
)
from tests.zoo.entry import Entry, Missing

__all__ = ["ENTRIES", "FAMILIES", "MISSING"]

FAMILIES = (
    recurrent,
    state,
    behaviour,
    forms,
    causal,
    encoders,
    seq2seq,
    vision,
    multimodal,
    diffusion,
    adapters,
)

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for family in FAMILIES
    for entry in family.ENTRIES
    if isinstance(entry, Entry)
}
MISSING: tuple[Missing, ...] = tuple(
    entry
    for family in FAMILIES
    for entry in family.ENTRIES
    if isinstance(entry, Missing)
)
