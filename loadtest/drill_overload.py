"""Twice, then four times the capacity, a worker killed meanwhile, then recovery: `make drill-overload`.

Starts a mesh of the profile overload, prints a line for every second, and ends with what was expected of the mesh and
whether it held; exit code 1 when something did not. `--quick` is shorter.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from loadtest.overload import drills, output
from loadtest.overload.meshes import overload_mesh
from loadtest.overload.timeline import LEGEND, verdict

FULL = drills.OverloadTimes(before=6, double=12, fourfold=14, kill=5, after=14)
QUICK = drills.OverloadTimes(before=3, double=6, fourfold=8, kill=2, after=10)


def main() -> int:
    """Run it."""
    options = output.options(__doc__).parse_args()
    output.begin(options)
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-drill-")))
        site = stack.enter_context(overload_mesh(folder, "mesh", drills.SETTING, settings=options.set))
        checks = drills.overload(site, folder / "runs", QUICK if options.quick else FULL, output.say)
    text, held = verdict(checks)
    output.say(f"{LEGEND}\n\n{text}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
