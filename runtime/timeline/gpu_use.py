"""Ask the driver, some times a second, how busy this rank's GPU is."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GpuUse", "sampled"]

PERIOD_S = 0.1
"""Between two samples; the driver's own figure is over a sixth of a second or more."""


class GpuUse:
    """Samples the share of time in which at least one kernel ran on a device.

    Args:
        device: Where the stage runs.
        read: Returns the share of the moment; None: what the driver says (NVML).
    """

    def __init__(
        self, device: torch.device, read: Callable[[], float] | None = None
    ) -> None:
        self.not_sampled = ""
        """Why there are no samples; empty: there are."""
        self._shares: list[float] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._read = read or _reader(device)
        except _NotSampledError as error:
            self.not_sampled = str(error)
        else:
            self._thread = threading.Thread(
                target=self._sample, name="GPU use", daemon=True
            )
            self._thread.start()

    def take(self) -> dict[str, Any]:
        """Return what was sampled since the last call, as plain data.

        Returns:
            ``samples``, and of their shares ``mean``, ``p10``, ``p50`` and ``p90``; or
            ``not_sampled``, the reason why there are none. Never a zero in its place.
        """
        shares, self._shares = self._shares, []
        if not shares:
            return {"not_sampled": self.not_sampled or "too short for a sample"}
        tenths = quantiles(shares, n=10) if len(shares) > 1 else shares * 9
        return {
            "samples": len(shares),
            "mean": fmean(shares),
            "p10": max(tenths[0], min(shares)),
            "p50": median(shares),
            "p90": min(tenths[8], max(shares)),
        }

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        try:
            while not self._ended.wait(PERIOD_S):
                self._shares.append(self._read())
        except Exception as error:
            # Whatever the driver says: it must not end the training.
            self.not_sampled = f"{type(error).__name__}: {error}"


@contextmanager
def sampled(device: torch.device) -> Iterator[GpuUse]:
    """Sample while this lasts."""
    found = GpuUse(device)
    try:
        yield found
    finally:
        found.stop()


class _NotSampledError(Exception):
    """Why a device is not asked."""


def _reader(device: torch.device) -> Callable[[], float]:
    if device.type != "cuda":
        raise _NotSampledError(f"the stages run on a {device.type}")
    try:
        import pynvml  # noqa: PLC0415 - optional
    except ImportError:
        raise _NotSampledError(
            "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
        ) from None
    try:
        pynvml.nvmlInit()
        # By its own name: CUDA_VISIBLE_DEVICES numbers devices anew, NVML does not.
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except (pynvml.NVMLError, AttributeError) as error:
        raise _NotSampledError(f"the driver does not say: {error}") from None

    def read() -> float:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100

    return read
