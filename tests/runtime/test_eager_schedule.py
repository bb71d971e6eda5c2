"""The instruction lists of eager 1F1B, as the engine reads them."""

from __future__ import annotations

from collections import Counter

import pytest
from deepspeed.runtime.pipe import schedule as deepspeed

from partitioner.runtime.eager_schedule import EagerSchedule

SIZES = [(1, 3), (2, 1), (2, 6), (3, 4), (4, 16), (4, 5)]


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_stage_does_all_of_each_kind_once(stages: int, micro_batches: int):
    for stage in range(stages):
        lists = EagerSchedule(micro_batches, stages, stage).steps()
        found = Counter(type(one) for step in lists for one in step)
        inner = {
            deepspeed.RecvActivation: stage > 0,
            deepspeed.SendGrad: stage > 0,
            deepspeed.SendActivation: stage < stages - 1,
            deepspeed.RecvGrad: stage < stages - 1,
            deepspeed.LoadMicroBatch: stage in {0, stages - 1},
            deepspeed.ForwardPass: True,
            deepspeed.BackwardPass: True,
        }
        once = {deepspeed.ReduceTiedGrads, deepspeed.ReduceGrads}
        once.add(deepspeed.OptimizerStep)
        expected = {kind: micro_batches for kind, there in inner.items() if there}
        assert found == Counter({**expected, **dict.fromkeys(once, 1)})


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_no_buffer_is_used_while_a_micro_batch_is_in_it(
    stages: int, micro_batches: int
):
    for stage in range(stages):
        schedule = EagerSchedule(micro_batches, stages, stage)
        held: set[int] = set()
        most = 0
        for one in (one for step in schedule.steps() for one in step):
            if isinstance(one, deepspeed.ForwardPass):
                assert one.buffer_id not in held
                held.add(one.buffer_id)
            elif isinstance(one, deepspeed.BackwardPass):
                held.remove(one.buffer_id)
            most = max(most, len(held))
        assert not held
        assert most == min(2 * (stages - stage) - 1, micro_batches)
        assert most <= schedule.num_pipe_buffers()
