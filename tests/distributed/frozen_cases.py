"""What is frozen where, and under which engine it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "CLIPPING", "DUAL", "Frozen"]

CLIPPING = 0.05


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What is frozen, and how it is trained.

    Args:
        stages: Pipeline stages, two for each rank under DualPipeV.
        frozen: Submodules that do not train.
        pin: The stage of each block; embedding and head are at the ends.
    """

    stages: int
    frozen: tuple[str, ...]
    pin: tuple[int, ...]
    tied: bool = False
    dtype: str = "float32"
    vee: bool = False
    groups: bool = False
    statistics: bool = False
    """Batch norm: of one replica, and in float32."""
    recompute: bool = False
    micro_batches: int = 4
    zero_bubble: bool = False
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.stages // 2 if self.vee else self.stages


FIRST = ("embed", "blocks.0")
MIDDLE = ("blocks.1", "blocks.2")
LAST = ("blocks.3", "head")
ZERO = {"zero_optimization": {"stage": 1}}
THREE, TWO = (0, 1, 1, 2), (0, 0, 1, 1)
VEE = (1, 2, 3, 4)

CASES: dict[str, Frozen] = {
    "2, first": Frozen(stages=2, frozen=(*FIRST, "blocks.1"), pin=TWO),
    "2, last": Frozen(stages=2, frozen=(*LAST, "blocks.2"), pin=TWO),
    "3, first": Frozen(stages=3, frozen=FIRST, pin=THREE),
    "3, middle": Frozen(stages=3, frozen=MIDDLE, pin=THREE, statistics=True),
    "3, last": Frozen(stages=3, frozen=LAST, pin=THREE),
    "3, all but the last": Frozen(stages=3, frozen=(*FIRST, *MIDDLE), pin=THREE),
    "3, all but the first": Frozen(stages=3, frozen=(*MIDDLE, *LAST), pin=THREE),
    "3, middle, recomputed": Frozen(
        stages=3, frozen=MIDDLE, pin=THREE, statistics=True, recompute=True
    ),
    "3, middle, zero bubble": Frozen(
        stages=3, frozen=MIDDLE, pin=THREE, zero_bubble=True
    ),
    "3, middle, zero": Frozen(stages=3, frozen=MIDDLE, pin=THREE, config=ZERO),
    "3, middle, groups": Frozen(
        stages=3, frozen=MIDDLE, pin=THREE, groups=True, config=ZERO
    ),
    "3, middle, bf16": Frozen(
        stages=3, frozen=MIDDLE, pin=THREE, dtype="bfloat16"
    ),
    "3, first, bf16, zero": Frozen(
        stages=3, frozen=FIRST, pin=THREE, dtype="bfloat16", config=ZERO
    ),
    "2, last but its tie, bf16": Frozen(
        stages=2,
        frozen=("blocks.2", "blocks.3", "head.bias"),
        pin=TWO,
        tied=True,
        dtype="bfloat16",
    ),
    "2, last but its tie, bf16, groups": Frozen(
        stages=2,
        frozen=("blocks.2", "blocks.3", "head.bias"),
        pin=TWO,
        tied=True,
        dtype="bfloat16",
        groups=True,
    ),
    "4, both of the first rank": Frozen(
        stages=4, frozen=(*FIRST, *LAST), pin=(0, 1, 2, 3), vee=True
    ),
    "6, both of the middle rank": Frozen(
        stages=6,
        frozen=("blocks.0", "blocks.3"),
        pin=VEE,
        vee=True,
        micro_batches=6,
        config=ZERO,
    ),
}  # fmt: skip


DUAL: dict[str, Frozen] = {
    "fp32": Frozen(
        stages=6, frozen=(), pin=VEE, vee=True, statistics=True, micro_batches=6
    ),
    "tied, recomputed, more micro-batches": Frozen(
        stages=6,
        frozen=(),
        pin=VEE,
        vee=True,
        tied=True,
        recompute=True,
        micro_batches=9,
    ),
    "bf16, zero": Frozen(
        stages=6,
        frozen=(),
        pin=VEE,
        vee=True,
        dtype="bfloat16",
        micro_batches=6,
        config=ZERO,
    ),
}
"""Nothing is frozen: DualPipeV on three ranks."""
