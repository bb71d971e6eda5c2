"""What a checkpoint says about itself: plan, parameters by name, files; plain JSON."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from partitioner.errors import CheckpointError

__all__ = [
    "MANIFEST",
    "FileRecord",
    "GroupRecord",
    "LayerRecord",
    "Manifest",
    "OptimizerKind",
    "OptimizerRecord",
    "PlanIdentity",
    "RankRecord",
    "Slot",
    "StageRecord",
    "TensorRecord",
]

MANIFEST = "manifest.json"
KIND = "fx-partitioner checkpoint"
SCHEMA_VERSION = 1

OptimizerKind = Literal["parameters", "copies", "flat", "partitioned"]
"""How the optimizer keeps its state: by parameter; by fp32 copies of parameters; in one
flat tensor for each group; in such a tensor, cut among the data-parallel replicas."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorRecord(_Record):
    """A tensor of the model."""

    shape: tuple[int, ...]
    dtype: str


class FileRecord(_Record):
    """A file as it was written."""

    bytes: int
    blake2b: str


class LayerRecord(_Record):
    """A file with tensors under their original names."""

    file: str
    stage: int
    tensors: dict[str, TensorRecord]


class Slot(_Record):
    """A parameter in the optimizer: its place in the group's flat tensor."""

    name: str
    shape: tuple[int, ...]
    offset: int


class GroupRecord(_Record):
    """A parameter group; ``partition`` is the part of one replica in elements."""

    slots: tuple[Slot, ...]
    partition: int


class OptimizerRecord(_Record):
    """The optimizer of one stage; ``files`` are by data-parallel replica."""

    kind: OptimizerKind
    name: str
    groups: tuple[GroupRecord, ...]
    files: tuple[str, ...]


class StageRecord(_Record):
    """One stage: the file of its engine's state, and its optimizer."""

    file: str
    optimizer: OptimizerRecord | None


class RankRecord(_Record):
    """One process: generators, data position, the loss's own buffers."""

    stage: int
    replica: int
    file: str


class PlanIdentity(_Record):
    """The plan, as far as a checkpoint depends on it."""

    fingerprint: str
    model_class: str
    parts: tuple[int, ...]
    recomputed: tuple[bool, ...]
    ties: dict[str, tuple[int, ...]]
    aliases: dict[str, str]
    """Every name in the model's ``state_dict`` → the first name of the same tensor."""
    config: dict[str, Any] | None
    """The configuration of a Hugging Face model."""

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.parts) - 1

    def first_name(self, name: str) -> str:
        """Return the name that stands for all names of the same tensor."""
        return self.aliases.get(name, name)


class Manifest(_Record):
    """The whole checkpoint."""

    tag: str
    global_steps: int
    versions: dict[str, str]
    plan: PlanIdentity
    replicas: int
    layers: tuple[LayerRecord, ...]
    stages: tuple[StageRecord, ...]
    ranks: tuple[RankRecord, ...]
    files: dict[str, FileRecord]

    def to_json(self) -> str:
        """Return the manifest with a hash of itself."""
        content = self.model_dump(mode="json")
        head = {"kind": KIND, "schema_version": SCHEMA_VERSION}
        whole = {**head, "blake2b": _hash(content), "content": content}
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Read a manifest.

        Args:
            text: The file's text.
            where: The file's name, for messages.

        Raises:
            CheckpointError: It is none, is damaged, or of another schema.
        """
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{where} is damaged: {error}") from error
        if not isinstance(whole, dict) or whole.get("kind") != KIND:
            raise CheckpointError(f"{where} is damaged: it is no manifest")
        if whole.get("schema_version") != SCHEMA_VERSION:
            raise CheckpointError(
                f"{where} has schema version {whole.get('schema_version')!r}, "
                f"not {SCHEMA_VERSION}",
                hint="load it with the version that wrote it",
            )
        content = whole.get("content")
        if whole.get("blake2b") != _hash(content):
            raise CheckpointError(
                f"{where} is damaged: its content is not what was written"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise CheckpointError(f"{where} is no valid manifest: {error}") from error


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode()).hexdigest()
