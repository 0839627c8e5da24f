"""`bin/setup` says what it does, a line a step with its seconds, whichever way it goes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  *"FAILS"*) exit 1;;
esac
"""


def setup(folder: Path, fails: str) -> subprocess.CompletedProcess[str]:
    """Runs it with a Python that does nothing, and cannot do what begins with `fails`."""
    (folder / "bin").mkdir()
    shutil.copy(ROOT / "bin/setup", folder / "bin")
    for name in ("requirements.lock", "requirements-torch.lock"):
        shutil.copy(ROOT / name, folder)
    python = folder / "python"
    python.write_text(PYTHON.replace("FAILS", fails))
    python.chmod(0o755)
    environ = {**os.environ, "PYTHON": str(python)}
    return subprocess.run(
        [str(folder / "bin/setup")], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("fails", ["uv-as-pip", "import torch", "nothing"])
def test_each_step_is_a_line_with_its_seconds(tmp_path: Path, fails: str) -> None:
    done = setup(tmp_path, fails)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 5
    for line in lines:
        assert re.fullmatch(r"\w.* \d+ s( \(failed\))?", line), line
    assert sum("failed" in line for line in lines) == (fails == "uv-as-pip")


def test_a_step_that_fails_ends_it_and_is_named(tmp_path: Path) -> None:
    done = setup(tmp_path, "compileall")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith("s (failed)")
