"""Where seconds come from: the device's profile, a file of timings, or this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.cost.measure import measure
from partitioner.cost.measurements import Measurements
from partitioner.cost.pricing import price
from partitioner.cost.profiles import resolve
from partitioner.errors import OptionError

if TYPE_CHECKING:
    import os

    from partitioner.cost.device import DeviceProfile
    from partitioner.costed import CostedGraph
    from partitioner.graph import ModelGraph

__all__ = ["MEASURE", "PriceSource"]

MEASURE = "measure"
"""As a device: time the model's parts here, before planning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSource:
    """What nodes are priced by.

    Args:
        profile: The device.
        measurements: Timings that were taken before; None: none.
        measures: Time on this machine what ``measurements`` lacks.
    """

    profile: DeviceProfile
    measurements: Measurements | None = None
    measures: bool = False

    @classmethod
    def of(
        cls,
        device: str | DeviceProfile | None,
        measurements: Measurements | str | os.PathLike[str] | None,
    ) -> PriceSource:
        """Read what the user asked for.

        Args:
            device: A profile, its name or file, or ``"measure"``.
            measurements: Timings, or their file.

        Raises:
            OptionError: The device is not known, or not the one that was measured.
            CostError: The file cannot be read.
        """
        if device == MEASURE:
            if measurements is not None:
                message = "device='measure' and measurements= were both given"
                raise OptionError(
                    message, hint="measure here, or use what was measured"
                )
            return cls(profile=resolve(None), measures=True)
        if measurements is None:
            return cls(profile=resolve(device))
        found = (
            measurements
            if isinstance(measurements, Measurements)
            else Measurements.load(Path(measurements))
        )
        if device is not None and resolve(device).name != found.profile.name:
            raise OptionError(
                f"the measurements are of {found.profile.name}, not of "
                f"{resolve(device).name}",
                hint="leave device= out: the measurements know theirs",
            )
        return cls(profile=found.profile, measurements=found)

    def price(self, graph: ModelGraph) -> CostedGraph:
        """Price every node of a recorded model.

        Raises:
            PartitionerError: The cache of timings cannot be written.
        """
        timings = measure(graph) if self.measures else self.measurements
        return price(graph, profile=self.profile, measurements=timings)
