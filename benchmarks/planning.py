"""Measure the planner on public workloads, traced models and synthetic graphs.

    python benchmarks/planning.py --data DIR --json out.json

DIR holds ``dnn-partitioning``, the workloads of github.com/msr-fiddle/dnn-partitioning;
without ``--data`` their tables are skipped. ``--only TABLE`` runs one table.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script

from benchmarks.plan.command import main

if __name__ == "__main__":
    sys.exit(main())
