"""Who watches a pipeline leaves it as it was for whoever watched before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import fx, nn

from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.instructions import watched_recomputation
from partitioner.runtime.segment import SegmentBody


def segment() -> CheckpointedSegment:
    graph = fx.Graph()
    made = graph.call_module("linear", (graph.placeholder("x"),))
    graph.output((made,))
    body = SegmentBody(
        name="again",
        graph=graph,
        modules={"linear": nn.Linear(3, 3)},
        checkpointed=True,
    )
    return CheckpointedSegment(body, is_first=True)


def test_one_who_watches_a_step_hides_nothing_from_one_who_watches_all():
    layer, seen = segment(), Counter[str]()

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        seen[name] += 1
        yield

    def step() -> None:
        layer(torch.ones(2, 3))[1].sum().backward()

    with watched_recomputation(layer, partial(noted, "all")):
        step()
        with watched_recomputation(layer, partial(noted, "one")):
            step()
        step()
    step()
    assert seen == {"all": 3, "one": 1}
    assert layer.around_recomputation is None
