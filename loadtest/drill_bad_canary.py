"""Versions that fail, are slow, cost twice as much, rolled out and taken back: `make drill-bad-canary`.

Starts a mesh of the profile rollout, prints a line for every second and every decision, and ends with what was expected
of the mesh and whether it held; exit code 1 when something did not. `--quick` rolls out the failing one only.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import uvloop

from loadtest.overload import output
from loadtest.overload.timeline import Check, verdict
from loadtest.rollout.drill import FAULTS, LEGEND, Times, bad_canary, prepare
from loadtest.rollout.site import rollout_site

TIMES = Times(before=5.0, patience=90.0, after=5.0)


async def run(folder: Path, names: tuple[str, ...], settings: list[str]) -> list[Check]:
    """One canary after the other."""
    checks: list[Check] = []
    async with rollout_site(folder, settings=settings) as site:
        await prepare(site)
        for name in names:
            checks += await bad_canary(site, FAULTS[name], name, TIMES, output.say)
    return checks


def main() -> int:
    """Run, print, judge."""
    options = output.options(__doc__).parse_args()
    output.begin(options.nice)
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-drill-")))
        names = ("errors",) if options.quick else tuple(FAULTS)
        checks = uvloop.run(run(folder, names, options.set))
    text, held = verdict(checks)
    output.say(f"{LEGEND}\n\n{text}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
