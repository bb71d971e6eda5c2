from __future__ import annotations

import pytest

from partitioner.cost import DeviceProfile
from partitioner.cost.measure.machine import machine_profile
from partitioner.errors import OptionError


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return machine_profile("cpu")


def test_a_profile_of_this_machine_can_be_written_and_read(profile, tmp_path):
    profile.save(tmp_path / "mine.json")
    assert DeviceProfile.load(tmp_path / "mine.json") == profile


def test_it_says_what_was_not_measured(profile):
    assert "link: PCIe 4.0 x16 assumed" in profile.source


def test_large_products_are_its_peak(profile):
    assert profile.efficiency["matmul"] == 1.0
    assert profile.peak_flops["float32"] > profile.memory_bandwidth / 12


def test_only_json_is_written(profile, tmp_path):
    with pytest.raises(OptionError, match="written as JSON"):
        profile.save(tmp_path / "mine.toml")
