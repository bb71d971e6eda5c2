"""Solves an MPS file with HiGHS through PuLP; run as a process so it can be killed.

Usage: ``python highs_process.py PROGRAM.mps ANSWER.json GAP SECONDS``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pulp

__all__ = ["main"]


def main(program: str, answer: str, gap: str, seconds: str) -> None:
    """Solve ``program`` and write status and values to ``answer`` as JSON."""
    variables, model = pulp.LpProblem.fromMPS(program)
    model.solve(
        pulp.HiGHS(msg=False, gapRel=float(gap), timeLimit=float(seconds), threads=1)
    )
    status, values = "stopped", {}
    if model.sol_status == pulp.LpSolutionOptimal:
        status = "optimal"
    elif model.sol_status == pulp.LpSolutionInfeasible:
        status = "infeasible"
    if status == "optimal" or model.sol_status == pulp.LpSolutionIntegerFeasible:
        values = {name: variable.value() for name, variable in variables.items()}
    bound = model.solverModel.getInfo().mip_dual_bound
    said = {
        "status": status,
        "values": values,
        "bound": bound if math.isfinite(bound) else -sys.float_info.max,
        "reason": f"it ended as: {model.solverModel.getModelStatus().name}",
    }
    Path(answer).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
