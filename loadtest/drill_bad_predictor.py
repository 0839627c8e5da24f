"""A good version of a model that predicts goes to all traffic; one that fails and one that is slow are taken back:
`make drill-bad-predictor`.

Starts a mesh of the profile rollout with two predictors, prints a line for every second and every decision, and ends
with what was expected of the mesh and whether it held; exit code 1 when something did not. `--quick` rolls out the good
one and the failing one only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.overload.timeline import Check
from loadtest.rollout.bad_predictor import FAULTS, LEGEND, bad_version, good_version, prepare
from loadtest.rollout.command import command
from loadtest.rollout.drill import Times
from loadtest.rollout.predictions import predictor_site

TIMES = Times(before=5.0, patience=120.0, after=5.0)


async def run(
    folder: Path, names: Sequence[str], settings: list[str], times: Times, say: Callable[[str], None]
) -> list[Check]:
    """One version after the other, the good one first."""
    async with predictor_site(folder, settings=settings) as site:
        await prepare(site)
        checks = await good_version(site, "2", times, say)
        for number, name in enumerate(names, start=3):
            checks += await bad_version(site, name, str(number), times, say)
    return checks


if __name__ == "__main__":
    sys.exit(command(__doc__, run, names=tuple(FAULTS), quick=("fails",), times=TIMES, legend=LEGEND))
