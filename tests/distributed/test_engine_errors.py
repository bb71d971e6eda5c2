"""What one rank cannot do is raised on all, and the engine goes on afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from partitioner.errors import PartitionerError
from tests.distributed.engine_cases import FOUR, Tagger, of_pair, pairs, tag_loss
from tests.distributed.launch import launch
from tests.distributed.scripts import Script, Step, alone, engine_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def script() -> Script:
    return Script(
        build=Tagger,
        steps=lambda _: [Step(batches=[pairs(0, FOUR)])],
        loss=lambda: tag_loss,
        forward=of_pair,
    )


def told(call: Any) -> str:
    """Return the kind and the message of what a call raises."""
    try:
        call()
    except (PartitionerError, StopIteration) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def bad(at: int) -> list[Any]:
    batches = pairs(0, FOUR)
    batches[at] = (batches[at][0].float(), batches[at][1])
    return batches


def refusals() -> dict[str, str]:
    engine = engine_of(script(), 3)
    last = engine.is_last_stage()
    seen = {
        "wrong batch": told(lambda: engine.train_batch(iter(bad(2)))),
        "one end only": told(
            lambda: engine.train_batch(iter(pairs(0, FOUR)[: 1 if last else 4]))
        ),
        "ended": told(lambda: engine.train_batch(iter([]))),
        "evaluation ended": told(
            lambda: engine.eval_batch(iter(pairs(0, FOUR)), num_micro_batches=5)
        ),
        "no micro-batch": told(
            lambda: engine.eval_batch(iter([]), num_micro_batches=0)
        ),
        "unequal outputs": told(
            lambda: engine.eval_batch(
                iter(pairs(0, [(2, 3), (3, 3)])),
                compute_loss=False,
                num_micro_batches=2,
            )
        )
        if last
        else "",
    }
    if not last:
        engine.eval_batch(
            iter(pairs(0, [(2, 3), (3, 3)])), compute_loss=False, num_micro_batches=2
        )
    # After all that it trains.
    loss = engine.train_batch(iter(pairs(0, FOUR))).item()
    return seen | {"loss": str(round(loss, 5))}


def test_refusals_are_raised_on_all_ranks_and_training_goes_on():
    ranks = launch(3, refusals)
    for name in ranks[0].keys() - {"unequal outputs"}:
        assert len({rank[name] for rank in ranks}) == 1, name
    (first, _, last) = ranks
    assert "the input 'ids' has dtype torch.float32" in first["wrong batch"]
    assert "2 of 3 ranks failed" in first["wrong batch"]
    assert "the data ended within a batch: 1 of 4" in first["one end only"]
    assert first["ended"].startswith("StopIteration")
    assert "4 of 5 micro-batches" in first["evaluation ended"]
    assert "num_micro_batches is 0" in first["no micro-batch"]
    assert "differ in shape: (2, 3, 12), (3, 3, 12)" in last["unequal outputs"]
    expected = alone(script())
    assert float(first["loss"]) == pytest.approx(expected.steps[0].loss, abs=2e-5)
