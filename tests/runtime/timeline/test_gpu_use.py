"""How busy a GPU is: samples of the driver's, or the reason why there are none."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

from partitioner.runtime.timeline.gpu_use import GpuUse, sampled

CPU = torch.device("cpu")


def after(shares: list[float], failure: Exception | None = None) -> GpuUse:
    """Return what has taken these samples, and then hears nothing more."""
    left, done = iter(shares), threading.Event()

    def read() -> float:
        share = next(left, None)
        if share is None:
            done.set()
            raise failure or RuntimeError("no more")
        return share

    use = GpuUse(CPU, read)
    assert done.wait(10)
    use.stop()
    return use


def test_samples_are_summed_up_once():
    use = after([0.5, 1.0, 0.0, 0.5])
    found = use.take()
    assert found["samples"] == 4
    assert found["mean"] == found["p50"] == 0.5
    assert 0 <= found["p10"] < 0.5 < found["p90"] <= 1
    assert "mean" not in use.take()


def test_one_sample_is_all_there_is_to_say():
    found = after([0.25]).take()
    assert found == {"samples": 1, "mean": 0.25, "p10": 0.25, "p50": 0.25, "p90": 0.25}


def test_sampling_goes_on_until_it_is_stopped():
    numbers = itertools.count()
    three = threading.Event()

    def read() -> float:
        if next(numbers) == 2:
            three.set()
        return 1.0

    use = GpuUse(CPU, read)
    assert three.wait(10)
    use.stop()
    assert use.take()["samples"] == next(numbers) >= 3


def test_a_cpu_is_not_sampled_and_never_zero():
    with sampled(CPU) as use:
        assert use.take() == {"not_sampled": "the stages run on a cpu"}


def test_a_driver_that_fails_is_named():
    found = after([], OSError("lost the device")).take()
    assert found == {"not_sampled": "OSError: lost the device"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a driver")
def test_without_a_driver_the_reason_is_its_library():
    use = GpuUse(torch.device("cuda"))
    assert "NVML" in use.take()["not_sampled"]


def test_without_the_package_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    use = GpuUse(torch.device("cuda"))
    assert "pip install nvidia-ml-py" in use.take()["not_sampled"]
