"""Versions that fail, are slow, cost twice as much, rolled out and taken back: `make drill-bad-canary`.

Starts a mesh of the profile rollout, prints a line for every second and every decision, and ends with what was expected
of the mesh and whether it held; exit code 1 when something did not. `--quick` rolls out the failing one only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.overload.timeline import Check
from loadtest.rollout.command import command
from loadtest.rollout.drill import FAULTS, LEGEND, Times, bad_canary, prepare
from loadtest.rollout.site import rollout_site

TIMES = Times(before=5.0, patience=90.0, after=5.0)


async def run(
    folder: Path, names: Sequence[str], settings: list[str], times: Times, say: Callable[[str], None]
) -> list[Check]:
    """One canary after the other."""
    checks: list[Check] = []
    async with rollout_site(folder, settings=settings) as site:
        await prepare(site)
        for name in names:
            checks += await bad_canary(site, FAULTS[name], name, times, say)
    return checks


if __name__ == "__main__":
    sys.exit(command(__doc__, run, names=tuple(FAULTS), quick=("errors",), times=TIMES, legend=LEGEND))
