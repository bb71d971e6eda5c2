"""Plan → what it says of a step, to be written next to what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.runtime.timeline import Forecast
from partitioner.simulate import chrome_trace

if TYPE_CHECKING:
    from partitioner.assess import Case

__all__ = ["forecast"]


def forecast(case: Case) -> Forecast:
    """Return a plan's seconds by stage, and its simulated step."""
    simulation = case.simulation
    return Forecast(
        about={
            "fingerprint": case.costed.graph.fingerprint,
            "forecast": {
                "schedule": simulation.schedule,
                "step_s": simulation.step_s,
                "bubble_share": simulation.bubble_share,
                "stages": [
                    {
                        "forward_s": stage.forward_s,
                        "backward_s": stage.backward_s,
                        "recompute_s": stage.recompute_s,
                    }
                    for stage in case.score.stages
                ],
            },
        },
        events=chrome_trace(simulation)["traceEvents"],
    )
