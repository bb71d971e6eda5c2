"""Find the device profile that a name, or the machine itself, stands for."""

from __future__ import annotations

import torch

from partitioner.cost.datasheets import PROFILES
from partitioner.cost.device import DeviceProfile, OperatorClass
from partitioner.cost.profile_file import SUFFIXES
from partitioner.errors import OptionError

__all__ = ["PROFILES", "DeviceProfile", "OperatorClass", "resolve"]

_ALIASES = {
    "a100": "a100-80g",
    "h100": "h100-80g",
    "v100": "v100-32g",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
}

# First match wins: (words of torch.cuda.get_device_name, profile). Memory sizes tell
# the variants of one chip apart where the name carries them.
_DEVICE_NAMES = (
    (("A100", "40GB"), "a100-40g"),
    (("A100",), "a100-80g"),
    (("H200",), "h200"),
    (("H100",), "h100-80g"),
    (("B200",), "b200"),
    (("L40S",), "l40s"),
    (("L4",), "l4"),
    (("4090",), "rtx-4090"),
    (("V100",), "v100-32g"),
)


def resolve(device: str | DeviceProfile | None = None) -> DeviceProfile:
    """Find the profile to price with.

    Args:
        device: A profile, its name or alias (``"h100"``, ``"a100-80g"``; case and
            separators do not matter), a file (``"mine.toml"``, ``"mine.json"``),
            ``"cuda"`` or None. None: the accelerator that is present, else the CPU.

    Returns:
        The profile.

    Raises:
        OptionError: No profile has that name, the file is no profile, or the
            accelerator that is present is not in the table.
    """
    if isinstance(device, DeviceProfile):
        return device
    if device is None or device.lower() == "cuda":
        return _present(required=device is not None)
    if device.lower().endswith(SUFFIXES):
        return DeviceProfile.load(device)
    wanted = device.lower().replace("_", "-").replace(" ", "-").removesuffix("b")
    wanted = _ALIASES.get(wanted, wanted)
    # "b" is cut from "80gb", not from a name that ends in it.
    found = PROFILES.get(wanted) or PROFILES.get(device.lower())
    if found is None:
        raise OptionError(
            f"device {device!r} is not a known profile",
            hint=f"choose from {', '.join(PROFILES)}, or write your own (.toml)",
        )
    return found


def _present(*, required: bool) -> DeviceProfile:
    if not torch.cuda.is_available():
        if required:
            raise OptionError(
                "device 'cuda' was asked for, but torch sees no CUDA device",
                hint=f"name the target instead: {', '.join(PROFILES)}",
            )
        return PROFILES["cpu"]
    name = torch.cuda.get_device_name()
    for words, profile in _DEVICE_NAMES:
        if set(words) <= set(name.replace("-", " ").split()):
            return PROFILES[profile]
    raise OptionError(
        f"no profile for the accelerator that is present, {name!r}",
        hint=f"choose from {', '.join(PROFILES)}, or write your own (.toml)",
    )
