"""Facts of a machine are read from the system's files, or are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.doctor import read_machine
from partitioner.doctor.pci import cpu_numbers


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def device(root: Path, address: str, **files: str) -> None:
    for name, text in files.items():
        write(root, f"sys/bus/pci/devices/{address}/{name}", text)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine of two nodes with two GPUs, a network card and a sound card."""
    device(
        tmp_path, "0000:17:00.0", vendor="0x10de", numa_node="0",
        current_link_speed="2.5 GT/s PCIe", max_link_speed="32.0 GT/s PCIe",
        current_link_width="8", max_link_width="16", **{"class": "0x030200"},
    )  # fmt: skip
    device(
        tmp_path, "0000:ca:00.0", vendor="0x1002", numa_node="-1",
        **{"class": "0x120000"},
    )  # fmt: skip
    device(tmp_path, "0000:18:00.0", vendor="0x15b3", **{"class": "0x020700"})
    device(tmp_path, "0000:17:00.1", vendor="0x10de", **{"class": "0x040300"})
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-3,8")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "4-7")
    write(tmp_path, "sys/class/net/eth0/operstate", "up")
    write(tmp_path, "sys/class/net/lo/operstate", "unknown")
    write(tmp_path, "proc/sys/kernel/numa_balancing", "2")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def test_a_machine_with_all_its_files(system: Path):
    machine = read_machine(system, {"NCCL_DEBUG": "INFO", "HOME": "/x", "PATH": ""})
    assert machine.environment == {"NCCL_DEBUG": "INFO"}
    assert machine.node_cores == {0: (0, 1, 2, 3, 8), 1: (4, 5, 6, 7)}
    assert machine.interfaces == ("eth0", "lo")
    assert machine.infiniband == ()
    assert machine.governor == "powersave"
    assert machine.numa_balancing is True
    assert machine.compiler is None
    assert machine.shared_memory_bytes
    assert machine.unknown == ()


def test_gpus_are_told_from_other_devices_on_the_bus(system: Path):
    found = read_machine(system, {}).accelerators
    assert found is not None
    first, second = found
    assert (first.address, first.vendor) == ("0000:17:00.0", "NVIDIA")
    assert (first.numa_node, first.width, first.max_width) == (0, 8, 16)
    assert second.vendor == "AMD"
    assert second.numa_node is None  # -1: the firmware does not say
    assert second.width is None


def test_what_is_not_there_is_unknown(tmp_path: Path):
    machine = read_machine(tmp_path, {})
    assert set(machine.unknown) >= {
        "accelerators",
        "governor",
        "infiniband",
        "interfaces",
        "node_cores",
        "numa_balancing",
        "shared_memory_bytes",
    }
    document = machine.to_dict()
    assert document["unknown"] == list(machine.unknown)
    assert document["accelerators"] is None


def test_no_infiniband_is_a_fact_only_where_the_kernel_lists_devices(tmp_path: Path):
    (tmp_path / "sys/class/net").mkdir(parents=True)
    assert read_machine(tmp_path, {}).infiniband == ()


def test_a_compiler_is_looked_for_where_torch_does(tmp_path: Path):
    write(tmp_path, "cuda/bin/nvcc", "")
    home = str(tmp_path / "cuda")
    assert read_machine(tmp_path, {"CUDA_HOME": home}).compiler == f"{home}/bin/nvcc"


def test_this_machine_can_be_read():
    machine = read_machine()
    assert machine.cores
    assert machine.to_dict()["cores"] == machine.cores


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("0-0", (0,))],
)
def test_lists_of_cpus(text: str, numbers: tuple[int, ...]):
    assert cpu_numbers(text) == numbers
