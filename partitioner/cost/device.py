"""DeviceProfile: what a roofline needs to know about one accelerator."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from partitioner.cost.profile_file import read_fields
from partitioner.errors import OptionError
from partitioner.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TENSOR_CORES", "DeviceProfile", "OperatorClass"]

OperatorClass = Literal[
    "matmul",
    "misaligned",
    "convolution",
    "narrow_convolution",
    "attention",
    "normalisation",
    "batch_norm",
    "other",
]
"""What an operator's reachable share of the peaks depends on.

``misaligned``: a product in a 16-bit type with rows that are no multiple of 16 bytes
(a vocabulary of 50,257), which tensor cores cannot load at once.
``narrow_convolution``: likewise one whose channels are no multiple of 8 (an image's 3).
"""

TENSOR_CORES: Mapping[OperatorClass, float] = {
    "matmul": 0.78,
    "misaligned": 0.12,
    "convolution": 0.25,
    "narrow_convolution": 0.03,
    "attention": 0.30,
    "other": 1.0,
}
"""Shares of the dense peak that eager kernels reach: an H200 under torch 2.11 measured
0.71-0.84 (products, bfloat16 and float32), 0.10-0.15 (misaligned products), 0.12-0.31
(convolutions, channels first), 0.02-0.06 (of images with 3 channels), 0.20-0.38 (fused
attention of width 64 without dropout, the masked half not counted)."""

STREAMS: Mapping[OperatorClass, float] = {"normalisation": 0.35, "batch_norm": 0.17}
"""Shares of the memory bandwidth that slow kernels reach: an H200 measured 0.34-0.63
(layer norm, softmax) and 0.12-0.21 (batch norm of 256 or more channels, in front)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One accelerator as a roofline sees it; public, so users can describe their own.

    Args:
        name: Shown in reports.
        memory_bytes: What a stage may use.
        peak_flops: Dense peak in FLOP/s by dtype name (``"bfloat16"``); one
            multiply-add is two FLOPs. ``"tfloat32"``, if there, is what float32
            convolutions use (torch's default, unlike matrix products).
        memory_bandwidth: Bytes per second to and from the device's memory.
        link_bandwidth: Bytes per second to a neighbour, one direction.
        link_latency_s: Seconds before the first byte of a message arrives.
        launch_s: Fixed cost of one kernel in seconds.
        source: Where the figures come from.
        kind: ``"gpu"``: attention, dropout and recurrences are fused kernels, and each
            keeps for backward what torch's CUDA kernels keep; ``"cpu"``.
        efficiency: Share of ``peak_flops`` an operator class reaches.
        bandwidth_efficiency: Share of ``memory_bandwidth`` that kernels reach (an
            H200 measured 0.84-0.91 for sums and products, 0.2 for a transposing copy).
        streams: That share where an operator class has one of its own.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    link_latency_s: float
    launch_s: float
    source: str
    kind: Literal["gpu", "cpu"] = "gpu"
    efficiency: Mapping[OperatorClass, float] = field(
        default_factory=lambda: dict(TENSOR_CORES)
    )
    bandwidth_efficiency: float = 0.75
    streams: Mapping[OperatorClass, float] = field(
        default_factory=lambda: dict(STREAMS)
    )

    def __post_init__(self) -> None:
        """Refuse figures a roofline would divide by.

        Raises:
            OptionError: A rate is not positive, a key is not known, or
                ``peak_flops`` lacks float32.
        """
        self._check_names()
        if "float32" not in self.peak_flops:
            raise OptionError(
                f"profile {self.name!r}: peak_flops has no entry 'float32'",
                hint="add it: other dtypes fall back to it",
            )
        rates = {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth": self.memory_bandwidth,
            "link_bandwidth": self.link_bandwidth,
            "bandwidth_efficiency": self.bandwidth_efficiency,
            **{f"peak_flops[{name!r}]": x for name, x in self.peak_flops.items()},
            **{f"efficiency[{name!r}]": x for name, x in self.efficiency.items()},
            **{f"streams[{name!r}]": x for name, x in self.streams.items()},
        }
        for name, value in rates.items():
            if not value > 0:
                raise OptionError(
                    f"profile {self.name!r}: {name} is {value}, must be above 0"
                )

    def _check_names(self) -> None:
        if self.kind not in {"gpu", "cpu"}:
            message = f"profile {self.name!r}: kind is {self.kind!r}"
            raise OptionError(message, hint="choose from gpu, cpu")
        classes = get_args(OperatorClass)
        for table in ("efficiency", "streams"):
            for entry in getattr(self, table):
                if entry not in classes:
                    message = f"profile {self.name!r}: {table} has an entry {entry!r}"
                    raise OptionError(message, hint=f"choose from {', '.join(classes)}")
        for name in ("link_latency_s", "launch_s"):
            value = getattr(self, name)
            if not value >= 0:
                message = f"profile {self.name!r}: {name} is {value}, below 0"
                raise OptionError(message)

    @classmethod
    def load(cls, path: str | Path) -> DeviceProfile:
        """Read a profile from a TOML or JSON file whose keys are the fields above.

        Args:
            path: The file. ``memory_bytes`` may be text like ``"80GB"``.

        Raises:
            OptionError: The file cannot be read, or a key is unknown, missing or out
                of range (names the file and the key).
        """
        fields = read_fields(Path(path))
        try:
            return cls(**fields)
        except OptionError as error:
            raise OptionError(f"{path}: {error.message}", hint=error.hint) from error

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON, for :meth:`load`.

        Raises:
            OptionError: The file's name does not end in ``.json``.
            PartitionerError: The file cannot be written.
        """
        if Path(path).suffix != ".json":
            message = f"a device profile is written as JSON, not to {path}"
            raise OptionError(message, hint="give it a name that ends in .json")
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_whole(path, text + "\n", "the device profile")

    def flops_per_s(self, dtype: str, operator_class: OperatorClass) -> float:
        """Return the reachable FLOP/s; unknown dtypes compute at float32's rate."""
        if dtype == "float32" and operator_class == "convolution":
            dtype = "tfloat32"
        peak = self.peak_flops.get(dtype, self.peak_flops["float32"])
        share = self.efficiency.get(operator_class)
        if share is None and operator_class == "misaligned":
            share = self.efficiency.get("matmul")
        return peak * (1.0 if share is None else share)

    def bytes_per_s(self, operator_class: OperatorClass) -> float:
        """Return the reachable bytes per second to and from memory."""
        share = self.streams.get(operator_class, self.bandwidth_efficiency)
        return self.memory_bandwidth * share
