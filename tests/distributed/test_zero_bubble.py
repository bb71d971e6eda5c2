"""With zero_bubble=True every stage computes in the order of ZB-H1."""

from __future__ import annotations

from typing import Any

import pytest

from partitioner.errors import OptionError
from partitioner.runtime.weight_gradients import PutOff
from partitioner.simulate import Compute, zero_bubble
from tests.distributed.engine_cases import CASES, FOUR, pairs
from tests.distributed.launch import launch
from tests.distributed.scripts import engine_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

STAGES = 3


def computed() -> tuple[list[str], str]:
    """Train one batch; return what this rank computed, and what it refuses."""
    engine = engine_of(CASES["changing-bubble"](), STAGES)
    order: list[str] = []

    def told(what: str, run: Any) -> Any:
        def instruction(*args: Any, **kwargs: Any) -> Any:
            order.append(what)
            return run(*args, **kwargs)

        return instruction

    names = {"ForwardPass": "forward", "BackwardPass": "backward"}
    engine._INSTRUCTION_MAP = {
        kind: told(names[kind.__name__], run) if kind.__name__ in names else run
        for kind, run in engine._INSTRUCTION_MAP.items()
    }
    run = PutOff.run
    PutOff.run = told("weights", run)  # type: ignore[method-assign]
    try:
        engine.train_batch(iter(pairs(0, FOUR)))
    finally:
        PutOff.run = run  # type: ignore[method-assign]
    return order, refused(engine)


def refused(engine: Any) -> str:
    engine.module.compile(backend="eager")
    try:
        engine.start_zero_bubble(wanted=True)
    except OptionError as error:
        return error.message
    return ""


def expected(rank: int) -> list[str]:
    """Return the paper's order."""
    names = {"input_gradient": "backward", "weight_gradient": "weights"}
    listed = zero_bubble(STAGES, len(FOUR), full=False).lists[rank]
    kinds = [each.kind for each in listed if isinstance(each, Compute)]
    return [names.get(kind, kind) for kind in kinds]


def test_computes_in_the_order_of_zb_h1_and_refuses_compiled_stages():
    for rank, (order, message) in enumerate(launch(STAGES, computed, timeout_s=300.0)):
        assert order == expected(rank)
        assert "compiled stages" in message
