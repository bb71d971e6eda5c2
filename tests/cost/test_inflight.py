from __future__ import annotations

import pytest

from partitioner.cost.inflight import in_flight


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
def test_the_engines_schedule_holds_what_1f1b_promises(stages, micro_batches):
    expected = [min(stages - stage, micro_batches) for stage in range(stages)]

    assert list(in_flight(stages, micro_batches)) == expected
