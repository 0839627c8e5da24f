"""The drills: what is done to the mesh, what is expected of it, and the verdict."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weir.registry.v1 import registry_pb2

from loadtest.figures import percentile
from loadtest.overload.meshes import Runner
from loadtest.overload.output import Usage, counts
from loadtest.overload.samples import OK, Sample, failed, refused
from loadtest.overload.setting import PLAIN_PLANS, QUALITY, Setting, Site, TenantSpec, run_header
from loadtest.overload.timeline import Check, Second, Watcher
from simulation.lengths import load
from simulation.workload import Step, TenantLoad

Say = Callable[[str], None]

MODEL = "weir-quality"
LENGTHS = load()["azure-conversation"].for_context(1024)
RATE = 10.0
"""Requests per second of these lengths that the profile overload's workers complete, somewhat below what bench-overload
measures as capacity: a drill wants round numbers, not exact ones."""
SEED = 1
_LATE = 1.0
"""Seconds by which one request in a hundred may be sent late."""

CALM = TenantSpec(id="calm")
"""Well-behaved."""
FLOOD = TenantSpec(id="flood")
PAID = TenantSpec(id="paying")
FREE = TenantSpec(id="gratis", paid=False, plan_policy="capped")
CAPPED = registry_pb2.PlanPolicy(
    id="capped",
    weight=1.0,
    ladder=[registry_pb2.DegradationStep(cap_output=registry_pb2.CapOutput(max_tokens=24, pressure=0.5))],
)
SETTING = Setting(
    tenants=(CALM, FLOOD, PAID, FREE),
    objectives={"quality": QUALITY},
    plans=(*PLAIN_PLANS, CAPPED),
)
"""For both drills, so that one mesh can have them one after the other."""


@dataclass(frozen=True, slots=True)
class FloodTimes:
    """Seconds of each phase."""

    before: int
    flood: int
    after: int

    @property
    def whole(self) -> int:
        """The run."""
        return self.before + self.flood + self.after


@dataclass(frozen=True, slots=True)
class OverloadTimes:
    """Seconds of each phase; the worker is killed `kill` seconds into the second overload."""

    before: int
    double: int
    fourfold: int
    kill: int
    after: int

    @property
    def whole(self) -> int:
        """The run."""
        return self.before + self.double + self.fourfold + self.after


def flood(site: Site, folder: Path, times: FloodTimes, say: Say) -> list[Check]:
    """A tenant asks for twenty times its share, then stops. What was expected, and what was found."""
    share = RATE / 2
    start, end = times.before, times.before + times.flood
    loads = [
        TenantLoad(CALM.id, rate=share * 0.6, lengths=LENGTHS, timeout=30.0, name=CALM.id),
        TenantLoad(
            FLOOD.id,
            rate=share * 0.3,
            steps=(Step(start, 20.0 / 0.3), Step(end, 1.0)),
            lengths=LENGTHS,
            timeout=30.0,
            name=FLOOD.id,
        ),
    ]
    events = {
        start: lambda: f"{FLOOD.id} begins to ask for 20 times its share ({20 * share:.0f} requests/s)",
        end: lambda: f"{FLOOD.id} stops flooding",
    }
    samples, rows = _run(site, folder, "flood", loads, times.whole, events, say)
    return _of_what_came(samples, flood_checks(samples, rows, times, share))


def flood_checks(samples: Sequence[Sample], rows: Sequence[Second], times: FloodTimes, share: float) -> list[Check]:
    """What is expected of a flood. Pure."""
    start, end = times.before, times.before + times.flood
    calm = [each for each in samples if each.tenant == CALM.id]
    during = [each for each in calm if start <= each.at < end]
    flooding = [each for each in samples if each.tenant == FLOOD.id and start <= each.at < end]
    refusals = [each for each in samples if refused(each)]
    # The queue that the flood left is at most a few seconds of work.
    settled = end + 4
    late = [each for each in samples if each.at >= settled]
    served = sum(each.outcome == OK for each in flooding)
    return [
        _at_least(f"{CALM.id} is served inside its objective during the flood", _good(during), 0.9, timed=True),
        _at_most(f"{CALM.id} is refused during the flood", _share(refused, during), 0.05, timed=True),
        _at_least(f"{FLOOD.id} still gets its share, of {share:.0f} requests/s", served / times.flood / share, 0.6),
        _at_least(f"{FLOOD.id}'s excess is refused", _share(refused, flooding), 0.7),
        _at_least("refusals that say when to come back", _share(_dated, refusals), 1),
        _at_most("requests that failed instead of being refused", sum(map(failed, samples)), 0),
        _at_least("served inside the objective once the flood is over", _good(late), 0.95, timed=True),
        *_calm_again(rows, settled),
    ]


def overload(site: Site, folder: Path, times: OverloadTimes, say: Say) -> list[Check]:
    """Twice, then four times what the workers can do, one of them killed meanwhile, then little. What was expected, and
    what was found."""
    begin, fourfold = times.before, times.before + times.double
    end = fourfold + times.fourfold
    worker = site.names("worker")[0]
    pid = site.pids()[worker]  # asking takes a while, and it will not change before

    def kill() -> str:
        os.kill(pid, signal.SIGKILL)
        return f"{worker} is killed"

    def at(factor: float, part: float) -> TenantLoad:
        steps = (Step(begin, 2.0 / factor), Step(fourfold, 4.0 / factor), Step(end, 1.0))
        return TenantLoad("", rate=RATE * factor * part, steps=steps, lengths=LENGTHS, timeout=30.0)

    loads = [
        replace(at(0.5, 0.35), tenant=PAID.id, name=PAID.id),
        replace(at(0.5, 0.65), tenant=FREE.id, queue_class="free", name=FREE.id),
    ]
    events: dict[int, Callable[[], str]] = {
        begin: lambda: "twice what the workers can do",
        fourfold: lambda: "four times what the workers can do",
        fourfold + times.kill: kill,
        end: lambda: "half of what the workers can do",
    }
    samples, rows = _run(site, folder, "overload", loads, times.whole, events, say)
    return _of_what_came(samples, overload_checks(samples, rows, times))


def overload_checks(samples: Sequence[Sample], rows: Sequence[Second], times: OverloadTimes) -> list[Check]:
    """What is expected of an overload. Pure."""
    begin, fourfold = times.before, times.before + times.double
    end = fourfold + times.fourfold
    settled = end + 5
    paying = [each for each in samples if each.tenant == PAID.id]
    double = [each for each in paying if begin + 2 <= each.at < fourfold]
    over = [each for each in samples if begin <= each.at < end]
    refusals = [each for each in over if refused(each)]
    late = [each for each in samples if each.at >= settled]
    free_over = [each for each in over if each.tenant == FREE.id]
    unlike = _share(refused, free_over) - _share(refused, [each for each in over if each.tenant == PAID.id])
    reasons = Counter(each.outcome for each in samples if failed(each))
    return [
        _at_least(
            f"{PAID.id}, 70% of the capacity, is served inside its objective at 2x", _good(double), 0.85, timed=True
        ),
        _at_least(f"{FREE.id} is shed before {PAID.id}: its share of refusals is higher by", unlike, 0.2),
        _at_least(f"{FREE.id} is not starved: served", _share(_served, free_over), 0.01),
        _at_least(f"{FREE.id}'s answers cut short under pressure, as its plan says", sum(map(_capped, free_over)), 1),
        _at_least("refusals that say when to come back", _share(_dated, refusals), 1),
        Check(
            "requests that failed, the killed worker's included", counts(reasons) if reasons else "none", not reasons
        ),
        Check(
            "the killed worker is back", f"{rows[-1].workers} workers at the end", bool(rows) and rows[-1].workers == 2
        ),
        _at_least("served inside the objective once the load is gone", _good(late), 0.95, timed=True),
        *_calm_again(rows, settled),
    ]


def _run(
    site: Site,
    folder: Path,
    name: str,
    loads: Sequence[TenantLoad],
    seconds: int,
    events: dict[int, Callable[[], str]],
    say: Say,
) -> tuple[list[Sample], list[Second]]:
    watcher = Watcher(site, loads, seconds=seconds, seed=SEED, ttft=QUALITY.ttft, say=say, events=events)
    runner = Runner(
        site,
        folder,
        Usage(),
        prefix="drill",
        model=MODEL,
        header=run_header(workers=2, discipline="fair"),
    )
    routes = {each.label: site.over_edge(each.tenant) for each in loads}
    samples = runner.watched(name, loads, routes, seconds, watcher, seed=SEED)
    return samples, watcher.rows


def _of_what_came(samples: Sequence[Sample], checks: list[Check]) -> list[Check]:
    """Where the machine could not even send the load in time, everything hangs on its speed."""
    if percentile([each.late for each in samples], 0.99) <= _LATE:
        return checks
    return [replace(check, timed=True) for check in checks]


def _capped(sample: Sample) -> bool:
    return "output_capped" in sample.degraded


def _dated(sample: Sample) -> bool:
    return sample.retry_after is not None


def _served(sample: Sample) -> bool:
    return sample.outcome == OK


def _good(samples: Sequence[Sample]) -> float:
    return _share(QUALITY.met, samples)


def _share(which: Callable[[Sample], bool], samples: Sequence[Sample]) -> float:
    """Of these requests, those; 1 of none."""
    return sum(map(which, samples)) / len(samples) if samples else 1.0


def _at_least(what: str, value: float, bound: float, *, timed: bool = False) -> Check:
    return Check(what, f"{value:.3g}, at least {bound:g}", value >= bound, timed)


def _at_most(what: str, value: float, bound: float, *, timed: bool = False) -> Check:
    return Check(what, f"{value:.3g}, at most {bound:g}", value <= bound, timed)


def _busy(row: Second) -> bool:
    return bool(row.shed) or sum(row.queued.values()) > 4


def _calm_again(rows: Sequence[Second], second: int) -> list[Check]:
    """How soon depends on the machine; that it comes to this does not."""
    late = [row for row in rows if row.at >= second]
    busy = [row.at for row in late if _busy(row)]
    found = f"still at second {busy[-1]}" if busy else "yes"
    what = "nothing is shed and hardly anything waits"
    return [
        Check(f"{what} from second {second} on", found, bool(late) and not busy, timed=True),
        Check(f"{what} at the end", "no" if not rows or _busy(rows[-1]) else "yes", bool(rows) and not _busy(rows[-1])),
    ]
