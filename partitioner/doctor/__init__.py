"""A DeepSpeed configuration, a plan and a machine → what is wrong, and a correction."""

from __future__ import annotations

from partitioner.doctor.config_file import ConfigFile, config_text, read_config
from partitioner.doctor.examine import Examination, examine
from partitioner.doctor.finding import Edit, Finding
from partitioner.doctor.machine import Machine, read_machine

__all__ = [
    "ConfigFile",
    "Edit",
    "Examination",
    "Finding",
    "Machine",
    "config_text",
    "examine",
    "read_config",
    "read_machine",
]
