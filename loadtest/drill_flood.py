"""A tenant floods, then stops: `make drill-flood`.

Starts a mesh of the profile overload, prints a line for every second, and ends with what was expected of the mesh and
whether it held; exit code 1 when something did not. `--quick` is shorter.
"""

from __future__ import annotations

import sys

from loadtest.overload import drills
from loadtest.overload.watch import watch

FULL = drills.FloodTimes(before=8, flood=16, after=12)
QUICK = drills.FloodTimes(before=4, flood=8, after=8)

if __name__ == "__main__":
    sys.exit(watch(__doc__, drills.flood, full=FULL, quick=QUICK))
