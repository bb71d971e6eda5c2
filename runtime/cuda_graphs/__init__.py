"""Segments whose launches are recorded once and replayed for every micro-batch.

A GPU that waits for its host computes nothing: where layers are short, launching takes
longer than running. A CUDA graph launches a whole pass at once. ``torch``'s own way
(``make_graphed_callables``) keeps one set of activations, which the next micro-batch in
flight would overwrite, and hands gradients to autograd, whose sums would be overwritten
too. Here every micro-batch in flight has memory of its own, and gradients are added
inside the graph.
"""

from __future__ import annotations

from partitioner.runtime.cuda_graphs.engine import CudaGraphs
from partitioner.runtime.cuda_graphs.recorder import CudaRecorder, Recorder
from partitioner.runtime.cuda_graphs.replays import Replays

__all__ = ["CudaGraphs", "CudaRecorder", "Recorder", "Replays"]
