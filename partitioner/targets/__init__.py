"""TARGET of the command line → a model and its example inputs.

A target is ``model.py``, ``model.py:attr`` or ``pkg.mod:attr``, where the attribute is
an ``nn.Module`` or something that can be called without arguments and returns one; or a
Hugging Face model: its folder, its ``config.json``, or its name on the Hub if
transformers has it in its cache.
"""

from __future__ import annotations

from partitioner.targets.open import open_target
from partitioner.targets.target import HuggingFaceOptions, Target

__all__ = ["HuggingFaceOptions", "Target", "open_target"]
