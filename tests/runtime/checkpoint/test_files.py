"""Files are proven before they are read, and no pickle is trusted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from partitioner import CheckpointError
from partitioner.runtime.checkpoint.files import HashingEngine, check_file, read_states
from partitioner.runtime.checkpoint.manifest import (
    FileRecord,
    Manifest,
    PlanIdentity,
)

CONTENT: dict[str, Any] = {
    "weight": torch.arange(300.0).reshape(3, 100),
    "half": torch.ones(7, dtype=torch.bfloat16),
    "plain": {"step": 4, "names": ["a", "b"], "nothing": None},
}


@pytest.fixture
def written(tmp_path) -> tuple[Path, FileRecord]:
    engine, path = HashingEngine(), tmp_path / "states.pt"
    engine.save(CONTENT, str(path))
    return path, engine.written["states.pt"]


def test_what_was_written_is_read(written):
    path, record = written
    check_file(path, record)
    found = read_states(path)
    assert torch.equal(found["weight"], CONTENT["weight"])
    assert torch.equal(found["half"], CONTENT["half"])
    assert found["plain"] == CONTENT["plain"]


def test_every_truncation_and_every_flipped_byte_is_an_error_naming_the_file(written):
    path, record = written
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(60):
        path.write_bytes(whole[: rng.randrange(len(whole))])
        with pytest.raises(CheckpointError, match=r"states\.pt is damaged"):
            check_file(path, record)
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        flipped = bytearray(whole)
        flipped[place] ^= bit
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"states\.pt is damaged"):
            check_file(path, record)


def test_a_deleted_file_is_an_error_naming_it(written):
    path, record = written
    path.unlink()
    with pytest.raises(CheckpointError, match=r"states\.pt does not exist"):
        check_file(path, record)
    with pytest.raises(CheckpointError, match=r"states\.pt does not exist"):
        read_states(path)


class Foreign:
    """A class that no reader knows."""


def test_an_object_is_refused_when_it_is_written(tmp_path):
    engine = HashingEngine()
    with pytest.raises(CheckpointError, match="Foreign") as caught:
        engine.save({"mine": Foreign()}, str(tmp_path / "states.pt"))
    assert "client_state" in caught.value.hint
    assert engine.written == {}


class Runs:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_code_in_a_file_is_not_run(tmp_path):
    path, proof = tmp_path / "states.pt", tmp_path / "proof"
    torch.save({"mine": Runs(proof)}, path)
    with pytest.raises(CheckpointError, match="neither a tensor nor plain data"):
        read_states(path)
    assert not proof.exists()


def manifest() -> Manifest:
    plan = PlanIdentity(
        fingerprint="f",
        model_class="m.M",
        parts=(0, 1, 3),
        recomputed=(False, True, False),
        ties={"a": (0, 1)},
        aliases={"a": "a", "b": "a"},
        config={"vocab_size": 5, "text": "é"},
    )
    return Manifest(
        tag="t",
        global_steps=3,
        versions={"torch": "2"},
        plan=plan,
        replicas=1,
        layers=(),
        stages=(),
        ranks=(),
        files={"x": FileRecord(bytes=1, blake2b="00")},
    )


def test_a_manifest_comes_back_as_it_was():
    text = manifest().to_json()
    assert Manifest.from_json(text, where="manifest.json") == manifest()


def outcome(text: str) -> Manifest | str:
    """Return the manifest, or the error's text."""
    try:
        return Manifest.from_json(text, where="manifest.json")
    except CheckpointError as error:
        return str(error)


def test_a_manifest_that_was_altered_is_never_another_manifest():
    text, rng = manifest().to_json(), random.Random(1)
    for _ in range(300):
        place = rng.randrange(len(text))
        altered = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        for damaged in (altered, text[:place]):
            found = outcome(damaged)
            if isinstance(found, str):
                assert "manifest.json" in found
            else:  # one blank for another, say
                assert found == manifest()


def test_another_schema_is_told_apart():
    text = manifest().to_json().replace('"schema_version": 1', '"schema_version": 9')
    with pytest.raises(CheckpointError, match="schema version 9, not 1"):
        Manifest.from_json(text, where="manifest.json")
