from __future__ import annotations

import pytest

from partitioner.cost import Measurements, PriceSource, resolve
from partitioner.errors import OptionError

H200 = Measurements(
    profile=resolve("h200"), device_name="NVIDIA H200", torch_version="2.13.0"
)


def test_a_name_gives_its_profile():
    source = PriceSource.of("h100", None)
    assert source.profile.name == "h100-80g"
    assert source.measurements is None


def test_measurements_know_their_device():
    assert PriceSource.of(None, H200).profile.name == "h200"
    assert PriceSource.of("H200", H200).measurements is H200


def test_a_file_is_read(tmp_path):
    H200.save(tmp_path / "costs.json")
    assert PriceSource.of(None, tmp_path / "costs.json").measurements == H200


def test_measurements_of_another_device_are_refused():
    with pytest.raises(OptionError, match="of h200, not of h100-80g"):
        PriceSource.of("h100", H200)


def test_measuring_here_and_measurements_exclude_each_other():
    with pytest.raises(OptionError, match="both given"):
        PriceSource.of("measure", H200)
