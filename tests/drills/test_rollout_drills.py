"""Bad canaries on a real mesh with simulated engines: pushed, rolled out, found out, taken back. What hangs on the
speed of this machine is left to `make drill-bad-canary`; what the mesh decides is not."""

from __future__ import annotations

from pathlib import Path

from loadtest.drill_bad_canary import run
from loadtest.rollout.drill import FAULTS, Times

TIMES = Times(before=3.0, patience=120.0, after=3.0)


async def test_versions_that_fail_are_slow_or_cost_too_much_are_taken_back(tmp_path: Path) -> None:
    lines: list[str] = []
    checks = await run(tmp_path, tuple(FAULTS), [], TIMES, lines.append)
    broken = [f"{check.what}: {check.found}" for check in checks if not check.held and not check.timed]
    assert not broken, "\n".join([*broken, *lines])
    assert sum("rolled_back" in line for line in lines) == len(FAULTS)
