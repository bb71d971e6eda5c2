"""What was found out about each model, and all of it as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from partitioner.verify import Verification

__all__ = ["Row", "table"]


@dataclass(kw_only=True)
class Row:
    """What was measured on one entry, and every way in which it failed."""

    name: str
    nodes: int = 0
    whole: int = 0
    opened: int = 0
    leaves: dict[str, str] = field(default_factory=dict)
    leaf_shares: dict[str, float] = field(default_factory=dict)
    """Path of a leaf → its share of the forward FLOPs."""
    capture_s: float = 0.0
    train_error: float = 0.0
    eval_error: float = 0.0
    bf16_error: float | None = None
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def see(self, found: Verification, what: str) -> None:
        """Note one verification in float32."""
        self.train_error = max(self.train_error, found.modes["train"].worst)
        self.eval_error = max(self.eval_error, found.modes["eval"].worst)
        if not found.ok:
            self.faults.append(f"{what}: {found}")


def table(rows: Sequence[Row]) -> Table:
    """Return the zoo as a table, one line for each model."""
    found = Table(title=f"{len(rows)} models", header_style="bold")
    for name in ("Model", "Nodes", "Modules whole/opened", "Leaves"):
        found.add_column(name)
    for name in (
        "Leaves' FLOPs",
        "Capture s",
        "Train error",
        "Eval error",
        "bf16 error",
        "All s",
    ):
        found.add_column(name, justify="right")
    for row in rows:
        found.add_row(*_cells(row), style="red" if row.faults else None)
    return found


def _cells(row: Row) -> list[str]:
    leaves = "\n".join(
        f"{path} ({row.leaf_shares.get(path, 0):.0%}): {why}"
        for path, why in row.leaves.items()
    )
    held = f"{sum(row.leaf_shares.values()):.0%}" if row.leaves else "–"
    bf16 = "–" if row.bf16_error is None else f"{row.bf16_error:.0e}"
    return [
        row.name, str(row.nodes), f"{row.whole}/{row.opened}", leaves,
        held, f"{row.capture_s:.2f}", f"{row.train_error:.0e}", f"{row.eval_error:.0e}",
        bf16, f"{row.seconds:.1f}",
    ]  # fmt: skip
