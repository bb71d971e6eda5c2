from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from partitioner.errors import OptionError
from partitioner.solve import backends
from partitioner.solve.backends import require_solver, run_solver
from tests.solve.oracle import best_objective_s
from tests.solve.test_program import program_of
from tests.solve.toys import chain

PROBLEM = chain((1.0, 2.0, 3.0, 4.0), hops=[1.0, 0.5, 2.0])


@pytest.fixture
def fake_cbc(tmp_path, monkeypatch):
    """Return a function that puts a script in CBC's place."""

    def put(body: str):
        script = tmp_path / "cbc"
        script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(backends, "_cbc_path", lambda: str(script))

    return put


def ask(limit_s=20.0, solver="cbc"):
    return run_solver(
        program_of(PROBLEM)[1].model, solver=solver, gap=0.0, time_limit_s=limit_s
    )


def test_a_solver_that_exits_with_an_error_has_failed(fake_cbc):
    fake_cbc("sys.exit(1)")
    assert ask().status == "failed"
    assert "exited with code 1" in ask().reason


def test_a_solver_that_writes_rubbish_has_failed(fake_cbc):
    fake_cbc("open(sys.argv[-1], 'w').write('Optimal - x\\n0 y')")
    assert ask().status == "failed"
    assert "unreadable" in ask().reason


def test_a_solver_that_is_missing_has_failed(monkeypatch, tmp_path):
    monkeypatch.setattr(backends, "_cbc_path", lambda: str(tmp_path / "none"))
    assert ask().status == "failed"
    assert "could not be started" in ask().reason


def test_a_solver_that_ignores_its_limit_is_killed_with_its_children(
    fake_cbc, tmp_path
):
    child = tmp_path / "child"
    fake_cbc(
        f"pid = os.fork()\nif pid: open({str(child)!r}, 'w').write(str(pid))\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    outcome = ask(limit_s=1.5)
    assert time.monotonic() - started < 10
    assert outcome.status == "stopped"
    for _ in range(50):  # the kernel may need a moment to bury it
        state = _state(int(child.read_text()))
        if state in ("", "Z"):
            break
        time.sleep(0.1)
    assert state in ("", "Z")


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return text.rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("solver", ["cbc", "highs"])
def test_solvers_agree_and_their_bound_is_below_the_optimum(solver):
    if solver == "highs":
        pytest.importorskip("highspy")
    program = program_of(PROBLEM)[1]
    outcome = run_solver(program.model, solver=solver, gap=0.0, time_limit_s=60.0)
    assert outcome.status == "optimal"
    objective_s = program.objective_s(outcome.values)
    assert objective_s == pytest.approx(best_objective_s(PROBLEM), rel=1e-6)
    assert 0 < outcome.bound * program.scale_s <= objective_s * (1 + 1e-6)


@pytest.mark.parametrize("solver", ["cbc", "highs"])
def test_the_relaxation_is_a_bound_below_the_optimum(solver):
    if solver == "highs":
        pytest.importorskip("highspy")
    program = program_of(PROBLEM)[1]
    outcome = run_solver(
        program.model, solver=solver, gap=0.0, time_limit_s=60.0, relax=True
    )
    assert outcome.status == "optimal"
    bound_s = program.objective_s(outcome.values)
    assert 0 < bound_s < best_objective_s(PROBLEM)


def test_the_last_bound_in_the_log_counts():
    log = "Continuous objective value is 3.5 - 0.1 seconds\n best possible 4.25), took"
    assert backends._logged_bound(log) == 4.25
    assert backends._logged_bound("nothing said") == -float("inf")


def test_an_unknown_solver_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="cbc, highs"):
        require_solver("gurobi")


def test_highs_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(OptionError, match=r"fx-partitioner\[highs\]"):
        require_solver("highs")


def test_no_time_left_means_stopped():
    assert ask(limit_s=1e-9).status == "stopped"
