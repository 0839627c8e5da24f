"""A bad canary as an operator watches it: one line a second, who was answered by which version and how, and every
decision in its own words."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.registry.v1 import registry_pb2 as pb

from libs.clock.stamps import unix
from libs.rollouts import arms_of, phase_of
from loadtest.figures import percentile
from loadtest.overload.samples import OK
from loadtest.overload.timeline import Check
from loadtest.rollout.site import ENDED, Change, Faults, RolloutSite
from loadtest.rollout.traffic import Seen
from loadtest.rollout.trial import Harm, harm

SLOW = {"ttft_factor": 6.0}
"""Of the engine's part. Waiting for a step to begin and the mesh's own part take as long for every version, so that
callers see about three times the time to the first token."""
ALIAS = "demo-0"
RATE = 20.0
USERS = 2_000
LEGEND = """
base, canary: answered whole in that second, failed (!) and the median time to the first token in ms, by what answered
weight: the canary's share of new requests as the registry has it"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds."""

    before: float
    """Of traffic on the baseline alone."""
    patience: float
    """For the canary to be taken back."""
    after: float
    """Of watching afterwards."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the canary."""

    name: str
    faults: Faults
    word: str
    """What the reason of the decision must speak of."""
    cost: float = 1.0
    """Of its tokens, as a multiple of the baseline's."""

    @property
    def every_answer(self) -> bool:
        """Each of its answers is bad; else its failures are."""
        return self.name != "errors"


FAULTS = {
    "errors": Fault("errors", {"error_rate": 0.3}, "error"),
    "slow": Fault("slow", SLOW, "ttft"),
    "costly": Fault("costly", {}, "cost per", cost=2.0),
}


async def prepare(site: RolloutSite) -> None:
    """A baseline that answers."""
    await site.alias(ALIAS, await site.push(ALIAS, "1"))
    await site.answered([ALIAS])


@dataclass(frozen=True, slots=True)
class Watched:
    """A rollout from its start to its end, with who asked meanwhile."""

    begun: float
    """When it was started; Unix seconds."""
    ended: pb.Rollout
    log: Sequence[Change]
    seen: Sequence[Seen]


async def bad_canary(
    site: RolloutSite, fault: Fault, version: str, times: Times, say: Callable[[str], None]
) -> list[Check]:
    """Roll a bad version out and watch it being taken back."""
    candidate = await site.push(ALIAS, version, fault.faults)
    for priced, factor in ((f"{ALIAS}@1", 1.0), (candidate, fault.cost)):
        await site.price(priced, factor)
    steps = ("--steps", "10,50", "--step-duration", "2m")
    found = await watched(site, ALIAS, candidate, fault.name, times, say, *steps)
    return _checks(found, fault, candidate)


async def watched(
    site: RolloutSite, alias: str, candidate: str, what: str, times: Times, say: Callable[[str], None], *options: str
) -> Watched:
    """Roll a version out and watch it to the end, and some time after it.

    :param options: of `weir rollout start`.
    """
    traffic = site.traffic(alias, rate=RATE, users=USERS, seed=1)
    sending = asyncio.create_task(traffic.run())
    begun = time.time()
    printing = asyncio.create_task(_print(site, alias, traffic.seen, candidate, begun, say))
    try:
        await asyncio.sleep(times.before)
        say(f"  --- {candidate} ({what}) is rolled out: {' '.join(options)}")
        start = time.time()
        started = await site.start(alias, candidate, *options, "--set", "sticky=user", reason="a drill")
        ended = await site.ended(alias, started, seconds=times.patience)
        await asyncio.sleep(times.after)
    finally:
        for task in (sending, printing):
            task.cancel()
        await asyncio.gather(sending, printing, return_exceptions=True)
    return Watched(start, ended, site.log.of(alias, started), traffic.seen)


async def _print(
    site: RolloutSite, alias: str, seen: Sequence[Seen], candidate: str, begun: float, say: Callable[[str], None]
) -> None:
    second, told = 0, len(site.log.changes)
    while True:
        await asyncio.sleep(max(0.0, begun + second + 1 - time.time()))
        for change in site.log.changes[told:]:
            say(_decision(change, begun))
        told = len(site.log.changes)
        of_second = [each for each in seen if second <= each.ended - begun < second + 1]
        say(row(second, of_second, candidate, _weight(site, alias)))
        second += 1


def row(second: int, answers: Sequence[Seen], candidate: str, weight: int) -> str:
    """One second. Pure."""
    parts = []
    for name, of_canary in (("base", False), ("canary", True)):
        own = [each for each in answers if (each.version == candidate) == of_canary]
        first = [each.ttft for each in own if each.ttft is not None]
        median = f"{percentile(first, 0.5) * 1e3:4.0f}" if first else "   -"
        failed = sum(each.outcome != OK for each in own)
        parts.append(f"{name} {len(own) - failed:3d} {f'!{failed}' if failed else '':<3} {median} ms")
    return f"{second:4d} s  {'   '.join(parts)}   weight {weight / 100:g}%"


def _decision(change: Change, begun: float) -> str:
    state = change.rollout.state
    phase = phase_named(change.rollout).lower()
    return f"  --- {change.at - begun:.1f} s: {phase}, step {state.step}: {state.reason} ({state.decided_by})"


def _weight(site: RolloutSite, alias: str) -> int:
    rollout = site.view.snapshot.rollouts.get(alias)
    return 0 if rollout is None or phase_of(rollout) in ENDED else arms_of(rollout)[1].weight


def _checks(found: Watched, fault: Fault, candidate: str) -> list[Check]:
    seen, decided = found.seen, unix(found.ended.state.ended_at)
    hurt = harm(seen, candidate=candidate, decided=decided, slow=fault.every_answer)
    baseline = [each for each in seen if each.version and each.version != candidate]
    late = [each for each in seen if each.sent > decided + 1.0]
    return [
        *taken_back(found, candidate, fault.word, hurt, others=baseline, after=late),
        Check(
            "harmed, of all requests meanwhile",
            f"{hurt.harmed_pct:.1f}%",
            not math.isnan(hurt.harmed_pct) and hurt.harmed_pct <= 20.0,
        ),
    ]


def taken_back(
    found: Watched, candidate: str, word: str, hurt: Harm, *, others: Sequence[Seen], after: Sequence[Seen]
) -> list[Check]:
    """What holds of every bad version, whatever it serves. Pure.

    :param word: what the reason of the decision must speak of.
    :param others: answers that are none of its own.
    :param after: what was asked once it was off.
    """
    reason, phase = found.ended.state.reason, phase_named(found.ended)
    weights = {arms_of(each.rollout)[1].weight for each in found.log}
    failed = sum(each.outcome != OK for each in others)
    fine = sum(each.outcome == OK and each.version != candidate for each in after)
    return [
        Check("the version is rolled back", phase, phase == "ROLLED_BACK"),
        Check("and the reason says why", reason, word in reason.lower()),
        Check("found out within 15 s of its first bad answer", f"{hurt.detect:.1f} s", hurt.detect <= 15.0, True),
        Check("no request sent to it a second after the decision", f"{hurt.off:.3f} s", hurt.off <= 1.0, True),
        Check("it never had more than a tenth", f"{max(weights) / 100:g}%", max(weights) <= 1000),
        Check("nobody else was failed", f"{failed} of {len(others)}", not failed),
        Check(
            "afterwards everybody is answered, by the version before",
            f"{fine} of {len(after)}",
            bool(after) and fine == len(after),
        ),
    ]


def phase_named(rollout: pb.Rollout) -> str:
    """As operators read it: "ROLLED_BACK"."""
    return pb.RolloutPhase.Name(phase_of(rollout)).removeprefix("ROLLOUT_PHASE_")
