"""Versions that predict on a real mesh: a good one goes to all traffic, bad ones are taken back. What hangs on the
speed of this machine is left to `make drill-bad-predictor`; what the mesh decides is not."""

from __future__ import annotations

from pathlib import Path

from loadtest.drill_bad_predictor import run
from loadtest.rollout.bad_predictor import FAULTS
from loadtest.rollout.drill import Times

TIMES = Times(before=2.0, patience=120.0, after=3.0)


async def test_a_good_version_is_promoted_and_bad_ones_are_taken_back(tmp_path: Path) -> None:
    lines: list[str] = []
    checks = await run(tmp_path, tuple(FAULTS), [], TIMES, lines.append)
    broken = [f"{check.what}: {check.found}" for check in checks if not check.held and not check.timed]
    assert not broken, "\n".join([*broken, *lines])
    assert sum("rolled_back" in line for line in lines) == len(FAULTS)
    print(*(f"{check.what}: {check.found}" for check in checks if check.timed), sep="\n")  # noqa: T201 - figures
