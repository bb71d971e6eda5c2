"""What the server imports before it forks: everything slow that ranks need."""

from __future__ import annotations

import logging

import torch
from deepspeed.utils import logger

import partitioner.runtime.pipeline_module

__all__ = ["partitioner"]

torch.set_num_threads(1)
logger.setLevel(logging.WARNING)
