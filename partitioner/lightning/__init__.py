"""Train a ``LightningModule`` as a pipeline: ``Trainer(strategy=PipelineStrategy(…))``.

For ``lightning.pytorch`` and for ``pytorch_lightning`` (the extra ``[lightning]``).
"""

from __future__ import annotations

from partitioner.lightning.strategy import PipelineStrategy

__all__ = ["PipelineStrategy"]
