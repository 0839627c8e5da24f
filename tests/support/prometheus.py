"""Prometheus's own programs, for tests that let them judge."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest

from tests.support.mesh import ROOT


@cache
def program(name: str) -> str:
    """The path of prometheus, promtool or alertmanager; the test is skipped where it cannot be had."""
    found = subprocess.run([ROOT / "bin" / "prometheus", name], capture_output=True, text=True, timeout=600)
    if found.returncode:
        pytest.skip(f"no {name}: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout.strip().splitlines()[-1]


def promtool(*arguments: str, **how: str) -> None:
    """What it complains of fails the test."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=300, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
