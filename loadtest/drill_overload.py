"""Twice, then four times the capacity, a worker killed meanwhile, then recovery: `make drill-overload`.

Starts a mesh of the profile overload, prints a line for every second, and ends with what was expected of the mesh and
whether it held; exit code 1 when something did not. `--quick` is shorter.
"""

from __future__ import annotations

import sys

from loadtest.overload import drills
from loadtest.overload.watch import watch

FULL = drills.OverloadTimes(before=6, double=12, fourfold=14, kill=5, after=14)
QUICK = drills.OverloadTimes(before=3, double=6, fourfold=8, kill=2, after=10)

if __name__ == "__main__":
    sys.exit(watch(__doc__, drills.overload, full=FULL, quick=QUICK))
