from __future__ import annotations

import json

from hypothesis import given

from partitioner.simulate import chrome_trace, simulate
from partitioner.simulate.from_deepspeed import one_f_one_b
from tests.simulate.pipelines import equal, priced_schedules


@given(priced_schedules())
def test_slices_are_the_events_in_microseconds(case):
    found = simulate(*case)

    trace = json.loads(json.dumps(chrome_trace(found)))

    slices = [entry for entry in trace["traceEvents"] if entry["ph"] == "X"]
    assert [(e["pid"], e["ts"], e["dur"]) for e in slices] == [
        (e.rank, e.start_s * 1e6, (e.end_s - e.start_s) * 1e6) for e in found.events
    ]
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    for rank, use in enumerate(found.ranks):
        held = [e["args"]["micro-batches"] for e in counters if e["pid"] == rank]
        assert max(held) == use.in_flight
        assert held[-1] == 0


def test_every_rank_is_a_process_with_a_name():
    trace = chrome_trace(simulate(one_f_one_b(2, 2), equal(2)))

    names = {
        entry["pid"]: entry["args"]["name"]
        for entry in trace["traceEvents"]
        if entry["name"] == "process_name"
    }
    assert names == {0: "rank 0 (predicted)", 1: "rank 1 (predicted)"}
