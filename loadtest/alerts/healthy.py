"""Which alerts fire while nothing is wrong: under load, a rollout and restarts of everything, with the real rules."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from loadtest.alerts.drills import Say
from loadtest.alerts.site import HASTY, PATIENT, Site, drill_site, watched

PROFILE = "replicas"
_PARTS = 4
"""The rollout begins after one part of the time, the restarts after two; in the last one there is load alone."""


async def false_alerts(folder: Path, seconds: float, say: Say) -> dict[str, int]:
    """How often each alert fired that fired at all."""
    async with drill_site(folder, 1.0, (), profile=PROFILE) as site, watched(site) as watch:
        _, better = await site.two_versions("drill", {"itl_factor": 1.0})
        end = time.monotonic() + seconds
        async with (
            site.load(HASTY, 2, tokens=24, pause=0.1) as one,
            site.load(PATIENT, 1, tokens=24, pause=0.1) as two,
            site.load("drill", 4, tokens=16, pause=0.1) as three,
        ):
            await asyncio.sleep(seconds / _PARTS)
            step = f"{seconds / _PARTS / 4:.0f}s"
            await site.weir(
                *("rollout", "start", "drill", better, "--steps", "20,50", "--step-duration", step),
                *("--set", "sticky=user", "--step-samples", "50", "--reason", "a healthy hour"),
            )
            say(f"  {better} is rolled out, steps of {step}")
            await asyncio.sleep(seconds / _PARTS)
            await _restarts(site, say)
            await asyncio.sleep(max(0.0, end - time.monotonic()))
            statuses = [*one, *two, *three]
        rollout = await site.weir("get", "rollouts", "drill")
        say(f"  {statuses.count(200)} of {len(statuses)} requests answered\n{rollout}")
        return {name: len(each) for name, each in watch.firings.items()}


async def _restarts(site: Site, say: Say) -> None:
    for name in site.injector.names():
        with suppress(LookupError):
            await asyncio.to_thread(site.injector.restart, name)
        await asyncio.to_thread(site.injector.wait_ready)
    say("  every process was restarted, one after the other")
