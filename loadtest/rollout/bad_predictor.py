"""Versions of a model that predicts as an operator watches them: a good one goes to all traffic, one that fails, one
whose callers the ladder answers and one that is slow are taken back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libs.clock.stamps import unix
from loadtest.overload.samples import OK
from loadtest.overload.timeline import Check
from loadtest.predict.graphs import spoilt
from loadtest.rollout.drill import Times, Watched, phase_named, taken_back, watched
from loadtest.rollout.predictions import ALIAS, SMALLER, STOOD_IN, PredictorSite
from loadtest.rollout.traffic import Seen
from loadtest.rollout.trial import harm

GOOD = "good"
LEGEND = """
base, canary: predictions answered in that second, not answered by what was asked (!) and their median time in ms
weight: the canary's share of new requests as the registry has it"""
_TURNS = 20_000
"""Of a slow version: 50 ms and more, where a call through the mesh takes some 10."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a version."""

    graph: Mapping[str, Any]
    word: str
    """What the reason of the decision must speak of."""
    outcome: str
    """What its callers get."""
    every_answer: bool = False
    """Each of its answers is bad; else its failures are."""


FAULTS = {
    "fails": Fault({"fails": True}, "error", "ENGINE_ERROR"),
    "stood-in": Fault({"fails": True, "smaller": (SMALLER,)}, "error", STOOD_IN),
    "slow": Fault({"turns": _TURNS}, "latency", OK, every_answer=True),
}


async def prepare(site: PredictorSite) -> None:
    """The demo model answers, and its objectives forgive much: a budget that a slow machine or the version before has
    used up would hold the next rollout."""
    await site.weir("set", "slos", "predict/classical", "availability=0.5", "e2e_p95=30s", "e2e_p99=60s")
    await site.answered([ALIAS])


async def good_version(site: PredictorSite, version: str, times: Times, say: Callable[[str], None]) -> list[Check]:
    """Roll the same model out as another version, by the default gates, and watch it being promoted."""
    candidate = await site.push_again(version)
    steps = ("--steps", "20,60", "--step-duration", "3s", "--step-samples", "30")
    found = await watched(site, ALIAS, candidate, GOOD, times, say, *steps)
    promoted, phase = unix(found.ended.state.ended_at), phase_named(found.ended)
    late = [each for each in found.seen if each.sent > promoted + 1.0]
    bad = [each for each in found.seen if each.outcome != OK]
    targets = [target.model_version for target in site.view.snapshot.aliases[ALIAS].targets]
    lost = unfaithful(found.seen, candidate, until=time.time())
    met = {each.user for each in found.seen if each.version == candidate and each.sent < promoted}
    return [
        Check("a good version is promoted", phase, phase == "PROMOTED"),
        Check("and the alias gives it", " ".join(targets), targets == [candidate]),
        Check("nobody was failed", f"{len(bad)} of {len(found.seen)}", not bad),
        Check("who met it stayed with it", f"{len(lost)} of {len(met)} users did not", not lost and bool(met)),
        Check(
            "afterwards everybody is answered by it",
            f"{sum(each.version == candidate for each in late)} of {len(late)}",
            bool(late) and all(each.version == candidate for each in late),
        ),
    ]


async def bad_version(
    site: PredictorSite, name: str, version: str, times: Times, say: Callable[[str], None]
) -> list[Check]:
    """Roll a bad version out and watch it being taken back."""
    fault = FAULTS[name]
    folder = site.folder / f"{ALIAS}@{version}"
    await asyncio.to_thread(spoilt, folder, **fault.graph)
    candidate = await site.push_folder(folder, ALIAS, version)
    steps = ("--steps", "10,50", "--step-duration", "2m")
    return _checks(await watched(site, ALIAS, candidate, name, times, say, *steps), candidate, fault)


def _checks(found: Watched, candidate: str, fault: Fault) -> list[Check]:
    decided = unix(found.ended.state.ended_at)
    # Of what the ladder answers the arm says whose answer it stands for.
    seen = [replace(each, version=candidate) if each.arm == _ARM else each for each in found.seen]
    ours, rest = [], []
    for each in seen:
        # Only the candidate fails in these runs: an answer that does not say who gave it is its own.
        (ours if each.version == candidate or (not each.version and each.outcome != OK) else rest).append(each)
    hurt = harm(seen, candidate=candidate, decided=decided, slow=fault.every_answer)
    last = max(each.sent for each in ours)
    after = [each for each in seen if each.sent > last and each.sent > decided + 1.0]
    lost = unfaithful(seen, candidate, until=decided)
    outcomes = {each.outcome for each in ours}
    return [
        *taken_back(found, candidate, fault.word, hurt, others=rest, after=after),
        Check("its callers heard what they were to hear", ", ".join(sorted(outcomes)), outcomes == {fault.outcome}),
        Check("who met it stayed with it until then", f"{len(lost)} users did not", not lost),
    ]


_ARM = "canary"


def unfaithful(seen: Sequence[Seen], candidate: str, *, until: float) -> set[str]:
    """Users who were answered by the candidate, and by something else when they asked again before `until` (Unix
    seconds). Pure."""
    met: set[str] = set()
    lost: set[str] = set()
    for each in sorted(seen, key=lambda one: one.sent):
        if each.sent >= until:
            break
        if each.version == candidate:
            met.add(each.user)
        elif each.version and each.user in met:
            lost.add(each.user)
    return lost
