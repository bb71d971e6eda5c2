"""With zero_bubble=True every stage computes in the order of ZB-H1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from deepspeed.runtime.pipe.schedule import BackwardPass
from torch import Tensor, nn

from partitioner import partition
from partitioner.errors import OptionError
from partitioner.plan.stages import put_off_bytes_by_stage
from partitioner.runtime.weight_gradients import PutOff
from partitioner.simulate import Compute, zero_bubble
from tests.distributed.engine_cases import CASES, FOUR, Tagger, pairs
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


def held_bytes(waiting: Iterable[PutOff]) -> int:
    """Return the memory of what these gradients wait with, weights left out."""
    found: dict[int, int] = {}
    todo: list[Any] = [rest for put_off in waiting for rest in put_off._rest]
    while todo:
        each = todo.pop()
        if isinstance(each, Tensor):
            if not isinstance(each, nn.Parameter):
                storage = each.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, tuple):
            todo += each
        elif hasattr(each, "__closure__"):
            todo += [cell.cell_contents for cell in each.__closure__ or ()]
    return sum(found.values())


def held() -> tuple[int, int]:
    """Train one batch; return the most that waits beside a backward, and the plan's."""
    script = CASES["changing-bubble"]()
    engine = engine_of(script, STAGES)
    peaks: list[int] = []
    run = engine._INSTRUCTION_MAP[BackwardPass]

    def backward(engine: Any, buffer_id: int) -> None:
        peaks.append(held_bytes([*engine._waiting, *engine._due]))
        run(engine, buffer_id)

    engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, BackwardPass: backward}
    engine.train_batch(iter(pairs(0, FOUR)))
    example = Tagger.example_input_array
    plan = partition(Tagger(), STAGES, example_inputs=example, micro_batches=len(FOUR))
    by_stage = put_off_bytes_by_stage(plan.graph, plan.placement, len(FOUR))
    return max(peaks), by_stage[engine.stage_id]


def test_holds_what_the_plan_says():
    first, *others = launch(STAGES, held, timeout_s=300.0)
    assert first == (0, 0)
    for measured, counted in others:
        assert measured == counted > 0
