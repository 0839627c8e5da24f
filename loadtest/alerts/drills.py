"""Which fault provokes which alerts, and which alerts are provoked by none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.alerts import faults
from loadtest.alerts.faults import Fault
from loadtest.alerts.site import Site
from loadtest.alerts.watch import Watch

FIRES, ENDS = 90.0, 240.0
"""Seconds within which an alert must fire, and end."""
Say = Callable[[str], None]


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault."""

    what: str
    fault: Fault
    alerts: tuple[str, ...]
    """Those that it must fire."""
    cannot: Callable[[], str] = field(default=_nothing)
    """Why it cannot be done on this machine; empty where it can."""


ROUNDS: tuple[tuple[Drill, ...], ...] = (
    (
        Drill("a tenant spends its budget", faults.spent_budget, ("WeirBudgetReached",)),
        Drill("a version cannot be loaded", faults.broken_version, ("WeirModelNotLoaded",)),
        Drill("a process cannot be reached by Prometheus", faults.unheard, ("WeirScrapeFailing",), faults.can_part),
        Drill("rollouts are frozen under way", faults.frozen_rollout, ("WeirRolloutHeld",)),
    ),
    (
        Drill("sixty callers of long answers", faults.flood(faults.LONG), ("WeirKvCacheFull", "WeirEdgeShedding")),
        Drill("a process dies three times", faults.flapping("collector"), ("WeirProcessFlapping",)),
        Drill("a member of etcd syncs slowly", faults.slow_disk, ("WeirEtcdSlow",), faults.can_trace),
    ),
    (Drill("sixty callers of shorter answers", faults.flood(faults.SHORT), ("WeirQueueOld",)),),
    (Drill("some answers are longer than others were", faults.misjudged, ("WeirPreemptionStorm",)),),
    (
        Drill(
            "the audit service's disk is full",
            faults.full_disk,
            ("WeirDiskFilling", "WeirDiskFull", "WeirAuditNotWritable"),
            faults.can_part,
        ),
        Drill("a canary fails", faults.failing_canary, ("WeirRolledBack",)),
    ),
    (Drill("most answers of a version fail", faults.failing_version, ("WeirBreakerOpen", "WeirSloBurn")),),
    (Drill("Envoy is told of a port that is none", faults.impossible_port, ("WeirXdsRejected",)),),
    (
        Drill("certificates have a tenth of their life", faults.old_certificates(9.0), ("WeirCertificateExpiring",)),
        Drill("a member of etcd is down", faults.down("etcd-2"), ("WeirEtcdMemberDown",)),
    ),
    (
        Drill("certificates have a fiftieth of their life", faults.old_certificates(2.0), ("WeirCertificateEnding",)),
        Drill("a clock is a minute ahead", faults.wrong_clock, ("WeirClockSkew",)),
    ),
    (
        Drill("the gateway is down", faults.down("gateway", requests=True), ("WeirEdgeLosing", "WeirServiceGone")),
        Drill("the rollout controller is down", faults.down("rollout"), ("WeirNoLeader",)),
    ),
    (Drill("the limiter is down", faults.down("ratelimit", requests=True), ("WeirDecidedAlone",)),),
    (
        Drill("the audit log is damaged", faults.damaged_log, ("WeirAuditDamaged",)),
        Drill("the records' database is away", faults.database_away, ("WeirRecordsStopped",)),
    ),
    (Drill("the audit service is down", faults.without_audit(until_lost=False), ("WeirAuditBehind",)),),
    (
        Drill(
            "and the gateway's disk is full",
            faults.without_audit(until_lost=True),
            ("WeirAuditLosing",),
            faults.can_part,
        ),
    ),
    (Drill("two of three members of etcd are down", faults.down("etcd-2", "etcd-3"), ("WeirEtcdLost",)),),
)
"""Those of a round go on at once, as they do not disturb one another; those after which a mesh has most to mend come
last."""
DRILLS = tuple(drill for each in ROUNDS for drill in each)
NOT_DRILLED: Mapping[str, str] = {
    "WeirSnapshotRefused": "the registry and the control plane keep out whatever it would refuse; only a fault of the "
    "control plane's own makes such a state",
}
"""Alerts that no real fault here provokes, with the reason."""
FASTEST: Mapping[str, Mapping[str, str]] = {"WeirSloBurn": {"short_window": "5m"}}
"""Labels of what is waited for of an alert with several windows: the slower ones look back over other faults, too."""
QUICK = ("WeirClockSkew", "WeirNoLeader")
"""For `make test`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one alert."""

    alert: str
    fired: float | None
    """Seconds from the fault; None: it did not."""
    ended: float | None
    """Seconds from the fault's end, likewise."""
    window: float
    """Seconds that its rule wants it to last (`for`), as they were evaluated."""
    why: str = ""
    """Why it was not provoked, or did not fire or end."""

    @property
    def late(self) -> float | None:
        """Seconds from the fault to firing, beyond the window."""
        return None if self.fired is None else self.fired - self.window


def chosen(alerts: Collection[str]) -> list[list[Drill]]:
    """The drills of these alerts, by rounds; all when none are named."""
    rounds = [[drill for drill in each if not alerts or set(alerts) & set(drill.alerts)] for each in ROUNDS]
    return [each for each in rounds if each]


async def play(
    site: Site, watch: Watch, rounds: Sequence[Sequence[Drill]], windows: Mapping[str, float], say: Say
) -> list[Result]:
    """One round after the other; that an alert ends is waited for while the next ones go on."""
    results: list[Result] = []

    async def one(drill: Drill) -> None:
        if reason := drill.cannot():
            results.extend(Result(name, None, None, windows[name], reason) for name in drill.alerts)
            return
        for result in await _provoked(site, watch, drill, windows):
            if result.fired is None:
                say(f"  ! {result.alert}: {result.why}")
                results.append(result)
            else:
                say(f"  {result.alert} fired {result.fired:.1f} s after: {drill.what}")
                ends.create_task(_ended(watch, result, time.monotonic(), results, say))

    async with asyncio.TaskGroup() as ends:
        for each in rounds:
            await asyncio.gather(*map(one, each))
    return results


async def _provoked(site: Site, watch: Watch, drill: Drill, windows: Mapping[str, float]) -> list[Result]:
    found: list[Result] = []
    try:
        # What an earlier fault fired must not be taken for this one's.
        since = await watch.quiet(drill.alerts, within=ENDS)
        async with drill.fault(site) as began:
            fired = await asyncio.gather(
                *(watch.fired(name, since, within=FIRES) for name in drill.alerts), return_exceptions=True
            )
            for name, at in zip(drill.alerts, fired, strict=True):
                if isinstance(at, BaseException):
                    found.append(Result(name, None, None, windows[name], f"not within {FIRES:g} s of: {drill.what}"))
                else:
                    found.append(Result(name, max(0.0, at - began), None, windows[name]))
    except (OSError, RuntimeError, LookupError) as error:  # of a mesh that does not do what the drill is about
        known = {each.alert for each in found}
        why = f"{drill.what}: {type(error).__name__}: {error}"
        found += [Result(name, None, None, windows[name], why) for name in drill.alerts if name not in known]
    return found


async def _ended(watch: Watch, result: Result, mended: float, results: list[Result], say: Say) -> None:
    try:
        at = await watch.quiet([result.alert], within=ENDS)
    except TimeoutError:
        say(f"  ! {result.alert} still fires {ENDS:g} s after the fault's end")
        results.append(Result(result.alert, result.fired, None, result.window, "it does not end"))
        return
    say(f"  {result.alert} ended {max(0.0, at - mended):.1f} s after the fault")
    results.append(Result(result.alert, result.fired, max(0.0, at - mended), result.window))
