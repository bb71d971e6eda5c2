from __future__ import annotations

import dataclasses
import json
import os

import pytest
import torch

from partitioner.cost.profiles import PROFILES, DeviceProfile, resolve
from partitioner.errors import OptionError


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_is_found_under_its_own_name_and_says_its_source(name):
    profile = resolve(name)

    assert profile.name == name
    assert profile.source


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "h100-80g"),
        ("H100", "h100-80g"),
        ("a100", "a100-80g"),
        ("A100-80GB", "a100-80g"),
        ("a100_40g", "a100-40g"),
        ("RTX 4090", "rtx-4090"),
        ("v100", "v100-32g"),
        ("b200", "b200"),
        ("CPU", "cpu"),
    ],
)
def test_spellings_of_one_device_lead_to_one_profile(spelling, name):
    assert resolve(spelling).name == name


def test_a_profile_of_the_users_own_is_taken_as_it_is():
    own = dataclasses.replace(PROFILES["h100-80g"], name="mine", memory_bytes=1)

    assert resolve(own) is own


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(OptionError, match="tpu-v5") as caught:
        resolve("tpu-v5")

    assert all(name in caught.value.hint for name in PROFILES)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "v100-32g"),
    ],
)
@pytest.mark.parametrize("asked", [None, "cuda"])
def test_the_accelerator_that_is_present_is_recognised(
    monkeypatch, asked, reported, name
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: reported)

    assert resolve(asked).name == name


@pytest.mark.parametrize("name", ["Contoso X1", "NVIDIA L40", "NVIDIA GH200 480GB"])
def test_an_accelerator_without_a_profile_is_refused_by_name(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)

    with pytest.raises(OptionError, match=name):
        resolve(None)


def test_float32_convolutions_use_tensor_cores_where_torch_lets_them():
    profile = resolve("a100")
    same = dict.fromkeys(profile.efficiency, 1.0)
    flat = dataclasses.replace(profile, efficiency=same)

    assert flat.flops_per_s("float32", "convolution") == 156e12
    assert flat.flops_per_s("float32", "matmul") == 19.5e12
    assert resolve("v100").flops_per_s("float32", "convolution") < 15.7e12


def test_without_an_accelerator_the_cpu_is_meant_and_its_memory_is_this_machines(
    monkeypatch,
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert resolve(None).name == "cpu"
    assert resolve(None).memory_bytes == ram_bytes
    with pytest.raises(OptionError, match="cuda"):
        resolve("cuda")


def test_unknown_dtypes_compute_at_float32s_rate():
    profile = resolve("h100")

    assert profile.flops_per_s("int8", "matmul") == profile.flops_per_s(
        "float32", "matmul"
    )
    assert profile.flops_per_s("bfloat16", "matmul") > profile.flops_per_s(
        "float32", "matmul"
    )


@pytest.mark.parametrize(
    "fault",
    [
        {"memory_bandwidth": 0.0},
        {"link_bandwidth": -1.0},
        {"memory_bytes": 0},
        {"peak_flops": {"bfloat16": 1e12}},
        {"peak_flops": {"float32": 0.0}},
        {"efficiency": {"matmul": 0.0}},
    ],
)
def test_figures_a_roofline_would_divide_by_are_checked(fault):
    with pytest.raises(OptionError, match="profile 'h200'"):
        dataclasses.replace(PROFILES["h200"], **fault)


OWN = """
name = "mine"
memory_bytes = "24GB"
memory_bandwidth = 1e12
link_bandwidth = 3.2e10
link_latency_s = 1e-5
launch_s = 3e-6

[peak_flops]
float32 = 4e13
bfloat16 = 16e13

[efficiency]
matmul = 0.7
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_a_profile_is_read_from_a_file_whose_path_is_the_device(own):
    profile = resolve(str(own))

    assert profile == DeviceProfile.load(own)
    assert profile.name == "mine"
    assert profile.memory_bytes == 24 * 10**9
    assert profile.flops_per_s("bfloat16", "matmul") == pytest.approx(0.7 * 16e13)
    assert profile.source == str(own)
    assert profile.kind == "gpu"


def test_a_profile_survives_json(tmp_path):
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(dataclasses.asdict(PROFILES["h200"])), encoding="utf-8")

    assert DeviceProfile.load(path) == PROFILES["h200"]


@pytest.mark.parametrize(
    ("line", "written", "key"),
    [
        ("launch_s = 3e-6", 'launch_s = "soon"', "launch_s is 'soon'"),
        ("launch_s = 3e-6", "launch_s = -1", "launch_s is -1"),
        ("launch_s = 3e-6", "", "'launch_s' is missing"),
        ("launch_s = 3e-6", "launch = 3e-6", "'launch' is no key"),
        ('"24GB"', '"plenty"', "memory_bytes"),
        ("bfloat16 = 16e13", "bfloat16 = true", "peak_flops.bfloat16 is True"),
        ("float32 = 4e13", "", "peak_flops has no entry 'float32'"),
        ("matmul = 0.7", "matmull = 0.7", "'matmull'"),
        ('name = "mine"', "name = 3", "name is 3"),
        ('name = "mine"', 'name = "mine"\nkind = "tpu"', "kind is 'tpu'"),
        ("[efficiency]", "[efficiency", "is no TOML"),
    ],
)
def test_a_fault_in_a_profiles_file_is_named_with_file_and_key(own, line, written, key):
    assert line in OWN
    own.write_text(OWN.replace(line, written, 1), encoding="utf-8")

    with pytest.raises(OptionError) as caught:
        DeviceProfile.load(own)

    assert str(own) in caught.value.message
    assert key in caught.value.message


def test_a_profiles_file_that_is_not_there_is_refused_by_its_path():
    with pytest.raises(OptionError, match=r"nowhere\.toml cannot be read"):
        resolve("nowhere.toml")
