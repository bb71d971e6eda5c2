"""Checkpoints: parameters by original name, whole or not there, for any plan.

Engine → files (``save``), files → engine (``load``); the manifest ties both together.
"""

from __future__ import annotations

from partitioner.runtime.checkpoint.engine import CheckpointingEngine
from partitioner.runtime.checkpoint.identity import PlanRecord
from partitioner.runtime.checkpoint.manifest import Manifest, PlanIdentity

__all__ = ["CheckpointingEngine", "Manifest", "PlanIdentity", "PlanRecord"]
