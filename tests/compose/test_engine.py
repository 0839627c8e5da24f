"""bin/docker-engine itself, with programs that do nothing in place of Docker's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import engine

PROGRAMS = {"bin/debian-tools": "exit 0"} | {
    f"build/docker-engine/tools/usr/bin/{name}": does
    for name, does in {"docker": "exit 0", "tini": "trap exit TERM; sleep 60 & wait"}.items()
}
FLOCK = shutil.which("flock") or ""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy whose packages are there already."""
    (tmp_path / "bin").mkdir()
    made = tmp_path / "bin" / "docker-engine"
    shutil.copy(engine.ENGINE, made)
    for name, does in PROGRAMS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{does}\n")
        path.chmod(0o755)
    return made


def test_it_keeps_nothing_open_that_its_starter_holds(script: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    done = subprocess.run([FLOCK, lock, script, "start"], capture_output=True, text=True, timeout=60)
    if done.returncode == engine.CANNOT and os.environ.get("WEIR_CI") != "1":
        pytest.skip(done.stderr.strip())
    try:
        assert done.returncode == 0, done.stderr
        assert subprocess.run([script, "status"]).returncode == 0
        assert subprocess.run([FLOCK, "--nonblock", lock, "true"]).returncode == 0
    finally:
        subprocess.run([script, "stop"], check=True, timeout=60)
    assert subprocess.run([script, "status"], capture_output=True).returncode == 3
