"""`weir simulate` and `weir calibrate`: what runs services' code, which no service may import, and so runs in a process
of its own, with its own options."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from services.cli.app import raw
from services.cli.output import failed


@raw
def simulate(words: list[str]) -> None:
    """Simulate the mesh under load: the real limiter and admission over modelled workers. Never a measurement."""
    if importlib.util.find_spec("simulation") is None:
        raise failed("the simulation is not installed here; run it from a checkout or from the wheel")
    _run("simulation", words)


@raw
def calibrate(words: list[str]) -> None:
    """Measure the torch engine on this machine and fit the simulated engine's costs to it."""
    _run("services.worker.calibration", words)


def _run(module: str, words: list[str]) -> None:
    raise SystemExit(subprocess.run([sys.executable, "-m", module, *words], check=False).returncode)  # noqa: S603 - our own argument list, no shell
