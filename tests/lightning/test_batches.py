from __future__ import annotations

from collections import UserDict

import pytest
import torch

from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.lightning.batches import BatchLayout, digest


def batch(samples: int):
    x = torch.arange(samples * 2.0).reshape(samples, 2)
    return {"x": [x, x + 1], "y": torch.arange(samples), "flag": True}


@pytest.mark.parametrize("samples", [8, 7, 4, 3])
def test_micro_batches_hold_every_sample_once(samples):
    whole = batch(samples)
    layout = BatchLayout(whole)
    parts = layout.split(whole, 4)
    assert len(parts) == 4
    assert sum(part.samples for part in parts) == samples
    counts = [part.samples for part in parts]
    assert max(counts) - min(counts) <= 1
    kept = [layout.rebuild(part) for part in parts if part.samples]
    assert torch.equal(torch.cat([each["y"] for each in kept]), whole["y"])
    joined = torch.cat([each["x"][1] for each in kept])
    assert torch.equal(joined, whole["x"][1])
    # What only fills up is as large as the smallest that counts.
    assert all(len(part["batch_y"]) == max(part.samples, 1) for part in parts)


def test_a_mapping_of_another_kind_stays_one():
    whole = UserDict({"words": torch.zeros(4, 3), "labels": torch.zeros(4)})
    layout = BatchLayout(whole)
    part = layout.split(whole, 2)[0]
    assert set(part) == {"batch_words", "batch_labels"}
    rebuilt = layout.rebuild(part)
    assert isinstance(rebuilt, UserDict)
    assert rebuilt["words"].shape == (2, 3)


def test_names_are_told_apart():
    layout = BatchLayout({"a": {"b": torch.zeros(2)}, "a_b": torch.zeros(2)})
    assert len(layout.leaves({"a": {"b": 0}, "a_b": 1})) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": torch.zeros(4, 2), "y": torch.zeros(3)}, "batch_x: 4, batch_y: 3"),
        ({"x": torch.zeros(4, 2), "y": torch.zeros(())}, "batch_y: no dimension"),
        ({"x": torch.zeros(0, 2), "y": torch.zeros(0)}, "batch_x: 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(given, words):
    layout = BatchLayout({"x": torch.zeros(1), "y": torch.zeros(1)})
    with pytest.raises(RuntimeGuardError, match=words):
        layout.split(given, 2)


def test_batches_must_be_built_alike():
    with pytest.raises(OptionError, match="no tensor"):
        BatchLayout({"text": "words"})
    with pytest.raises(RuntimeGuardError, match="batch_0, batch_1"):
        BatchLayout(torch.zeros(3)).leaves((torch.zeros(3), torch.zeros(3)))


def test_a_digest_tells_batches_apart():
    assert digest(batch(4)) == digest(batch(4))
    assert digest(batch(4)) != digest(batch(5))
    other = batch(4)
    other["x"][0][1, 1] += 0.5
    assert digest(batch(4)) != digest(other)
