"""A checkpoint is whole or not there, whenever a process stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitioner import CheckpointError, OptionError
from partitioner.runtime.checkpoint.folders import CheckpointFolder, latest_tag
from partitioner.runtime.checkpoint.manifest import MANIFEST


def write(folder: CheckpointFolder, text: str) -> None:
    folder.prepare()
    (folder.partial / MANIFEST).write_text(text)


def complete(root: Path, tag: str, text: str = "one") -> CheckpointFolder:
    folder = CheckpointFolder(root, tag)
    write(folder, text)
    folder.publish()
    folder.make_latest()
    return folder


def read(folder: CheckpointFolder) -> str:
    return (folder.readable() / MANIFEST).read_text()


def test_what_is_being_written_is_not_there_yet(tmp_path):
    before = complete(tmp_path, "first")
    folder = CheckpointFolder(tmp_path, "second")
    write(folder, "two")
    assert latest_tag(tmp_path) == "first"
    assert read(before) == "one"
    with pytest.raises(CheckpointError, match="there is no checkpoint") as caught:
        folder.readable()
    assert "complete ones: first" in caught.value.hint
    folder.publish()
    assert latest_tag(tmp_path) == "first"
    folder.make_latest()
    assert latest_tag(tmp_path) == "second"


def test_a_tag_that_is_written_again_is_readable_at_every_moment(tmp_path):
    folder = complete(tmp_path, "last")
    write(folder, "two")
    assert read(folder) == "one"
    folder.final.rename(folder.replaced)  # what publish() does first
    assert read(folder) == "one"
    assert latest_tag(tmp_path) == "last"
    # The next run begins where the last one was killed.
    write(folder, "three")
    assert read(folder) == "one"
    folder.publish()
    assert read(folder) == "three"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "latest"]


def test_what_a_killed_run_left_goes(tmp_path):
    folder = CheckpointFolder(tmp_path, "last")
    write(folder, "half")
    (folder.partial / "more").write_text("of it")
    write(folder, "whole")
    folder.publish()
    assert [path.name for path in folder.final.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("text", ["", "fir", "first", "\n", "second\n", "../x\n", "é"])
def test_a_damaged_latest_is_an_error(tmp_path, text):
    complete(tmp_path, "first")
    (tmp_path / "latest").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match="latest") as caught:
        latest_tag(tmp_path)
    assert "utf-8" in str(caught.value) or "first" in caught.value.hint


def test_a_changed_latest_never_names_another_checkpoint(tmp_path):
    for step in range(10, 20):
        complete(tmp_path, f"step-{step}")
    path = tmp_path / "latest"
    written = path.read_bytes()
    assert written.decode().strip() == "step-19"  # what DeepSpeed reads
    flipped = [
        written[:place] + bytes([written[place] ^ 1 << bit]) + written[place + 1 :]
        for place in range(len(written))
        for bit in range(8)
    ]
    assert any(b"step-18" in each for each in flipped)
    for damaged in [*flipped, *(written[:end] for end in range(len(written)))]:
        path.write_bytes(damaged)
        if damaged == b"step-19\n":  # as if it were written by hand
            assert latest_tag(tmp_path) == "step-19"
            continue
        with pytest.raises(CheckpointError, match="latest"):
            latest_tag(tmp_path)


def test_latest_may_be_written_by_hand(tmp_path):
    for tag in ("first", "second"):
        complete(tmp_path, tag)
    (tmp_path / "latest").write_text("first\n")
    assert latest_tag(tmp_path) == "first"


def test_no_latest_is_no_checkpoint_yet(tmp_path):
    assert latest_tag(tmp_path) is None


def test_a_folder_of_deepspeed_alone_is_told_apart(tmp_path):
    (tmp_path / "global_step5").mkdir()
    (tmp_path / "latest").write_text("global_step5")
    tag = latest_tag(tmp_path)
    assert tag == "global_step5"
    with pytest.raises(CheckpointError, match=MANIFEST) as caught:
        CheckpointFolder(tmp_path, tag).readable()
    assert "DeepSpeed" in caught.value.hint


@pytest.mark.parametrize("tag", ["", ".hidden", "a/b", ".."])
def test_a_tag_is_a_folders_name(tmp_path, tag):
    with pytest.raises(OptionError, match="tag"):
        CheckpointFolder(tmp_path, tag)
