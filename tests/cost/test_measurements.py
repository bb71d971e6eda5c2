from __future__ import annotations

import json

import pytest

from partitioner.cost import Measurements, resolve
from partitioner.cost.measurements import Timing
from partitioner.errors import CostError, PartitionerError


def some() -> Measurements:
    return Measurements(
        profile=resolve("h200"),
        device_name="NVIDIA H200",
        torch_version="2.13.0",
        nodes={"Linear 12": Timing(forward_s=1e-3, backward_s=2e-3)},
        blocks={"Layer 34": Timing(forward_s=2e-3, backward_s=4e-3, opening_s=1e-5)},
        failed={"index 56": "IndexError: out of range"},
    )


def test_a_file_gives_back_what_was_saved(tmp_path):
    some().save(tmp_path / "costs.json")
    assert Measurements.load(tmp_path / "costs.json") == some()


def test_only_what_is_used_stays():
    kept = some().only(["Linear 12"])
    assert (list(kept.nodes), list(kept.blocks), list(kept.failed)) == (
        ["Linear 12"],
        [],
        [],
    )


def test_the_source_names_device_and_torch():
    assert some().source == "NVIDIA H200 (torch 2.13.0)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "plan"}, "holds no measurements"),
        ({"schema_version": 9}, "schema version 9, not 4"),
        ({"schema_version": 3}, "schema version 3, not 4"),  # hosts timed after waits
        ({"nodes": {"x": {"forward_s": -1}}}, "-1, not a time"),
        ({"nodes": {"x": {"forward_s": float("inf")}}}, "inf, not a time"),
        ({"nodes": {"x": {"seconds": 1}}}, "damaged: TypeError"),
        ({"nodes": 3}, "damaged: AttributeError"),
        ({"profile": {"name": "x"}}, "damaged: TypeError"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**some().to_dict(), **change}))
    with pytest.raises(CostError, match=message):
        Measurements.load(path)


def test_a_file_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("{")
    with pytest.raises(CostError, match=r"costs\.json is no JSON"):
        Measurements.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CostError, match=r"costs\.json cannot be read"):
        Measurements.load(tmp_path / "costs.json")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PartitionerError, match="could not be written"):
        some().save(tmp_path / "none" / "costs.json")
