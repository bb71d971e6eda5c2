"""Configurations are read as DeepSpeed reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from partitioner import OptionError
from partitioner.doctor import config_text, read_config

COMMENTED = """{
  // what a step takes
  "train_batch_size": 8,   # all of it
  /* the rest */
  "gradient_clipping": 0.5,
  "optimizer": {"type": "AdamW", "params": {"lr": 6e-5, "betas": [0.9, 0.95,],},},
}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "ds.json"
    path.write_text(text)
    return path


def test_comments_and_last_commas_are_read_as_deepspeed_does(tmp_path: Path):
    path = written(tmp_path, COMMENTED)
    found = read_config(path)
    theirs = DeepSpeedConfig(str(path))
    assert found.config["train_batch_size"] == theirs.train_batch_size == 8
    assert found.config["optimizer"]["params"] == theirs.optimizer_params
    assert found.duplicates == ()


def test_keys_that_come_twice_are_named(tmp_path: Path):
    path = written(tmp_path, '{"a": {"b": 1, "b": 2}, "c": 1, "c": 2, "c": 3}')
    found = read_config(path)
    assert found.config == {"a": {"b": 2}, "c": 3}
    assert set(found.duplicates) == {"b", "c"}


@pytest.mark.parametrize("text", ["[1]", '{"a": [1}', "\x00"])
def test_what_is_no_object_is_an_error_with_its_file(tmp_path: Path, text: str):
    path = written(tmp_path, text)
    with pytest.raises(OptionError, match=r"ds\.json"):
        read_config(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(OptionError, match="cannot be read"):
        read_config(tmp_path / "absent.json")


def test_what_is_written_is_plain_json_in_the_same_order():
    config = {"z": 1, "a": {"ü": 1e-5}}
    text = config_text(config)
    assert json.loads(text) == config
    assert list(json.loads(text)) == ["z", "a"]
