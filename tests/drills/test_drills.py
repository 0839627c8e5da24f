"""The drills at their shortest. What hangs on the speed of this machine is left to `make drill-flood` and
`make drill-overload`; what the mesh decides is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.overload import drills
from loadtest.overload.setting import Site
from loadtest.overload.timeline import Check


def missed(checks: Sequence[Check], lines: Sequence[str]) -> str:
    """What did not hold, with the timeline; empty when all did."""
    broken = [f"{check.what}: {check.found}" for check in checks if not check.held and not check.timed]
    return "\n".join([*broken, *lines]) if broken else ""


def test_a_flood_is_refused_and_forgotten(site: Site, tmp_path: Path) -> None:
    lines: list[str] = []
    checks = drills.flood(site, tmp_path, drills.FloodTimes(before=2, flood=6, after=9), lines.append)
    assert not missed(checks, lines)
    assert any(" late " in line or " edge " in line for line in lines), "the timeline shows no refusal"


def test_an_overload_sheds_the_free_plan_first_and_survives_a_killed_worker(site: Site, tmp_path: Path) -> None:
    lines: list[str] = []
    times = drills.OverloadTimes(before=2, double=4, fourfold=5, kill=1, after=10)
    checks = drills.overload(site, tmp_path, times, lines.append)
    assert not missed(checks, lines)
    assert any("is killed" in line for line in lines)
