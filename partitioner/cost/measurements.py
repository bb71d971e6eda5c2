"""Measured seconds of nodes and blocks: plain data that travels between machines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.cost.device import DeviceProfile
from partitioner.errors import CostError, OptionError
from partitioner.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Measurements", "Timing"]

KIND = "fx-partitioner measurements"
SCHEMA_VERSION = 4
"""Files of before are refused: up to 3 a block's host was timed after a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median seconds of one call, and of its backward (0 where there is none).

    The device's own time: the host runs ahead and never lets it wait.
    """

    forward_s: float
    backward_s: float = 0.0
    opening_s: float = 0.0
    """Of a block: what it takes longer when it runs node by node."""
    host_s: float = 0.0
    """Of a block on a GPU: the host's time to start all of it, backward included, where
    it follows another call without a wait."""

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            CostError: A value is negative or not finite.
        """
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise CostError(f"a measured {name} is {value}, not a time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was timed on one device, by signature.

    Args:
        profile: The device, for what was not measured (memory, links).
        device_name: As the driver names it.
        torch_version: Version that ran the kernels.
        compiled: Whether blocks ran under ``torch.compile``.
        nodes: Timing of single operations and leaf modules.
        blocks: Timing of whole repeated modules.
        failed: Why the rest could not be timed: it is priced by the profile.
    """

    profile: DeviceProfile
    device_name: str
    torch_version: str
    compiled: bool = False
    nodes: Mapping[str, Timing] = field(default_factory=dict)
    blocks: Mapping[str, Timing] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def only(self, used: Iterable[str]) -> Measurements:
        """Return the timings that ``used`` names, for a plan file."""
        wanted = frozenset(used)
        return replace(
            self,
            nodes={key: self.nodes[key] for key in self.nodes if key in wanted},
            blocks={key: self.blocks[key] for key in self.blocks if key in wanted},
            failed={key: self.failed[key] for key in self.failed if key in wanted},
        )

    @property
    def source(self) -> str:
        """Where the figures come from, in words."""
        how = ", compiled" if self.compiled else ""
        return f"{self.device_name} (torch {self.torch_version}{how})"

    @property
    def summary(self) -> str:
        """What was timed, where, and what could not be, in words."""
        text = (
            f"{len(self.nodes)} operations and {len(self.blocks)} layers timed on "
            f"{self.source}"
        )
        return f"{text}; {self.not_timed}" if self.failed else text

    @property
    def not_timed(self) -> str:
        """What could not be timed and why, in words; "" if there is nothing."""
        failed = [f"{name.split()[0]} ({why})" for name, why in self.failed.items()]
        return f"not timed: {', '.join(failed)}" if failed else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            **{
                key: value
                for key, value in asdict(self).items()
                if key not in ("nodes", "blocks")
            },
            "nodes": {name: asdict(timing) for name, timing in self.nodes.items()},
            "blocks": {name: asdict(timing) for name, timing in self.blocks.items()},
        }

    @classmethod
    def from_dict(cls, content: Any, *, where: str) -> Measurements:
        """Check and read what :meth:`to_dict` returned.

        Args:
            content: The plain data.
            where: Names its origin in errors.

        Raises:
            CostError: It is something else, or a value is out of range.
        """
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise CostError(
                f"{where} holds no measurements",
                hint="write them with `partitioner measure TARGET -o costs.json`",
            )
        if content.get("schema_version") != SCHEMA_VERSION:
            found = content.get("schema_version")
            raise CostError(
                f"{where} has schema version {found}, not {SCHEMA_VERSION}",
                hint="measure again, and plan by that",
            )
        try:
            return cls(
                profile=DeviceProfile(**content["profile"]),
                device_name=str(content["device_name"]),
                torch_version=str(content["torch_version"]),
                compiled=bool(content["compiled"]),
                nodes=_timings(content["nodes"]),
                blocks=_timings(content["blocks"]),
                failed={str(k): str(v) for k, v in content["failed"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError, OptionError) as error:
            message = f"{where} is damaged: {type(error).__name__}: {error}"
            raise CostError(message, hint="measure again") from error

    def save(self, path: str | Path) -> None:
        """Write JSON; an existing file is replaced as a whole.

        Raises:
            PartitionerError: The file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        write_whole(path, text + "\n", "measurements")

    @classmethod
    def load(cls, path: str | Path) -> Measurements:
        """Read what :meth:`save` wrote.

        Raises:
            CostError: The file is missing, unreadable or something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CostError(f"{path} cannot be read: {error.strerror}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CostError(f"{path} is no JSON: {error}") from error
        return cls.from_dict(content, where=str(path))


def _timings(content: Mapping[str, Any]) -> dict[str, Timing]:
    return {str(name): Timing(**values) for name, values in content.items()}
