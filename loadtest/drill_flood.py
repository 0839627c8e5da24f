"""A tenant floods, then stops: `make drill-flood`.

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

FULL = drills.FloodTimes(before=8, flood=16, after=12)
QUICK = drills.FloodTimes(before=4, flood=8, after=8)


def main() -> int:
    """Run it."""
    options = output.options(__doc__).parse_args()
    output.begin(options)
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-drill-")))
        site = stack.enter_context(overload_mesh(folder, "mesh", drills.SETTING, settings=options.set))
        checks = drills.flood(site, folder / "runs", QUICK if options.quick else FULL, output.say)
    text, held = verdict(checks)
    output.say(f"{LEGEND}\n\n{text}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
