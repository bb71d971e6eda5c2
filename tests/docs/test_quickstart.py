"""A newcomer copies the quick start, command by command, and reaches a trained step.

The page's own commands run, in their order, in one shell, in a copy of what the package
is built of: they make the fresh virtual environment, and install the project into it.
What is *not* fresh are the heavy wheels, since downloading torch takes minutes: a
``.pth`` file in the new environment points to the packages of the environment that runs
the tests, and ``torchrun``, which an installation of torch would have put there, is
written by this test. pip may use no index, and builds with the setuptools over there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.docs.blocks import blocks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
PARTS = ("partitioner", "runtime", "pyproject.toml", "README.md", "LICENSE")

HEAVY = f"""
.venv/bin/python -m pip uninstall --quiet --yes setuptools  # of old Pythons: too old
packages=$(echo .venv/lib/python*/site-packages)
echo '{sysconfig.get_paths()["purelib"]}' > "$packages/heavy.pth"
printf '#!/bin/sh\\nexec "%s" -m torch.distributed.run "$@"\\n' \\
    "$PWD/.venv/bin/python" > .venv/bin/torchrun
chmod +x .venv/bin/torchrun
"""


def script() -> str:
    """Return the page as a shell script: its files, and its commands after each."""
    parts = ["set -euo pipefail"]
    for block in blocks("quickstart"):
        if block.language == "sh":
            commands = block.text.splitlines()
            if commands[0] == "python3 -m venv .venv":
                commands.insert(1, HEAVY)
            parts += commands
        elif block.language == "python":
            name = re.findall(r"`(\w+\.py)`", block.before)[-1]
            parts.append(f"cat > {name} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
    return "\n".join(parts) + "\n"


def copied(folder: Path) -> Path:
    """Copy what the package is built of; links stay links, as git has them."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_page_s_commands_reach_a_trained_step(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    folder = copied(tmp_path / "clone")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    own = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=folder,
        env={
            **kept,
            "HOME": str(tmp_path),
            "PATH": f"{own}{os.pathsep}{kept['PATH']}",  # whose python3 the wheels fit
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: without isolation
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (folder / ".venv" / "bin" / "partitioner").exists()
    assert "GPT2LMHeadModel: 2 stages" in done.stdout
    losses = re.findall(r"^step (\d): loss (\d+\.\d{4})$", done.stdout, re.MULTILINE)
    assert [step for step, _ in losses] == ["0", "1", "2"]
    assert "ok: every difference is at most" in done.stdout
