"""The Docker engine of this checkout (bin/docker-engine) for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "bin" / "docker-engine"
CANNOT = 77
"""What bin/docker-engine and bin/images end with where they cannot run."""
MINUTES = 60.0


def require(*command: str | Path, timeout: float = 25 * MINUTES) -> None:
    """Runs what a test needs to have run. Where it cannot run, the test is skipped, and fails with WEIR_CI=1."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    if done.returncode == CANNOT and os.environ.get("WEIR_CI") != "1":
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout


def run(*command: str | Path, timeout: float = 10 * MINUTES, check: bool = True) -> str:
    """What a command says that runs beside the engine: `docker` is on its path, published ports are its loopback's."""
    done = subprocess.run(
        [ENGINE, "run", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0 or not check, f"{command}: {done.stdout}"
    return done.stdout
