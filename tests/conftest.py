"""Settings that hold for every test: one thread, and DeepSpeed on the CPU."""

from __future__ import annotations

import os

# Before anything imports torch or DeepSpeed: both read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
