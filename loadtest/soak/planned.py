"""Losses as a whole: `make drill-rolling`, `make drill-spot` and `make drill-zone`, with the books of a soak.

- rolling: every process of the profile replicas is restarted, one after the other, as an operator would, twice.
  Nobody's request may fail and no stream may be cut.
- spot: the machines of the workers are taken away, one after the other, with a notice of so many seconds; every answer
  is longer than that. Their streams must move, token-exact, before the end of the notice.
- zone: one of two zones is gone for a while: everything in it but its Envoy, which a balancer takes out (here the two
  share a port, and nothing in front could). Workers have the headroom that docs/deploy.md asks for, twice what the load
  needs. Second by second: requests, failures, time to the first token; `rto_s` is from the blow to the last request
  that failed or missed the objective, `records_lost` the RPO.

Ends with one line of JSON; exit code 1 when something was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.figures import percentile
from loadtest.machine import machine
from loadtest.soak.__main__ import say
from loadtest.soak.book import Seen, missed
from loadtest.soak.inject import Injector
from loadtest.soak.load import Clients, Mix
from loadtest.soak.run import Outcome, Plan, Say, soak

DRAIN, GRACE = 7.0, 10.0
"""Seconds before the end of the notice at which a drain has to be over, and at which streams are moved."""
TOKENS = 400
LONGER = 1.3
"""Answers take so many times the notice."""
TTFT = 2.0
"""Seconds, of deploy/seed's objective for the fast tier."""
RTO = 15.0
"""Seconds after the loss of a zone from which on nobody may notice it: a lease of an endpoint and some."""


def rolling(rounds: int, only: Sequence[str] = ()) -> Plan:
    """Restarts of everything, or of some processes, so many times."""

    async def restarts(clients: Clients, injector: Injector, tell: Say) -> Counter[str]:
        done: Counter[str] = Counter()
        for name in [*(only or injector.names())] * rounds:
            began = clients.now
            await asyncio.to_thread(injector.restart, name)
            recovery = await asyncio.to_thread(injector.wait_ready)
            done["restart"] += 1
            tell(f"{began:7.1f} s  {name} restarted; ready {recovery:.1f} s later; {clients.failed} failed so far")
        return done

    return Plan(seconds=0, seed=1, rollouts=False, planned=restarts)


def spot(notice: float, workers: Sequence[str] = ("worker-a", "worker-b")) -> Plan:
    """The workers' machines are taken away, with this notice in seconds (more than 15)."""

    async def reclaims(clients: Clients, injector: Injector, tell: Say) -> Counter[str]:
        done: Counter[str] = Counter()
        for name in workers:
            await asyncio.sleep(0.2 * notice)  # streams are under way on both
            began = clients.now
            took = await asyncio.to_thread(injector.reclaim, name, notice)
            tell(f"{began:7.1f} s  {name} is told to go, and has gone {took:.1f} s later, of {notice:g} s")
            done["in time" if took < notice else "too late"] += 1
            await asyncio.to_thread(injector.wait_ready)
        return done

    return Plan(
        seconds=0,
        seed=1,
        mix=Mix(streams=6, calls=0, embeds=0, batches=2),
        questions=1,
        tokens=TOKENS,
        step=LONGER * notice / TOKENS,
        every_length=False,
        rollouts=False,
        settings=(f"worker.drain_seconds={notice - DRAIN}", f"worker.drain_grace={notice - GRACE}"),
        planned=reclaims,
    )


@dataclass(slots=True)
class Zone:
    """The loss of a zone, and when it was."""

    seconds: float
    name: str = "zone-b"
    blow: float = 0.0
    over: float = 0.0
    seen: Sequence[Seen] = ()

    def plan(self) -> Plan:
        """Load, then the loss, then what follows."""
        mix = Mix(streams=6, calls=1, embeds=1, batches=0)
        return Plan(seconds=0, seed=1, mix=mix, questions=2, tokens=24, rollouts=False, planned=self._lose)

    async def _lose(self, clients: Clients, injector: Injector, tell: Say) -> Counter[str]:
        self.seen = clients.seen
        await asyncio.sleep(self.seconds / 2)
        self.blow = clients.now
        gone = [each for each in injector.names() if injector.zone(each) == self.name and not each.startswith("envoy")]
        tell(f"{self.blow:7.1f} s  {self.name} is gone: {', '.join(gone)}")
        await asyncio.to_thread(injector.hold_down, gone, self.seconds)
        self.over = clients.now
        recovery = await asyncio.to_thread(injector.wait_ready)
        tell(f"{self.over:7.1f} s  it may come back, and is ready {recovery:.1f} s later")
        await asyncio.sleep(self.seconds / 2)
        return Counter({"zone": 1})

    def figures(self) -> dict[str, float]:
        """What the loss cost those who asked while it lasted."""
        asked = [each for each in self.seen if self.blow <= each.at < self.over]
        bad = [each.at - self.blow for each in asked if not _good(each)]
        good = 100 * (1 - len(bad) / max(1, len(asked)))
        return {"rto_s": round(max(bad, default=0.0), 1), "within_slo_pct": round(good, 2)}

    def timeline(self) -> Iterator[str]:
        """A line for every second."""
        for second in range(int(max((each.at for each in self.seen), default=0.0)) + 1):
            asked = [each for each in self.seen if second <= each.at < second + 1]
            failed = sum(not each.done for each in asked)
            firsts = sorted(each.first for each in asked if each.first)
            p95 = f"{percentile(firsts, 0.95):.2f} s" if firsts else "-"
            mark = "  gone" if self.blow <= second + 1 and second < self.over else ""
            yield f"{second:5d} s  {len(asked):3d} asked  {failed:3d} failed  first token p95 {p95}{mark}"


def _good(seen: Seen) -> bool:
    return seen.done and seen.first <= TTFT


def lost(outcome: Outcome) -> list[str]:
    """What must not be: figures that miss their target, streams that were cut, machines that went too late. That an
    idle connection was closed and another one taken is how HTTP ends (RFC 9112, section 9.5)."""
    told = outcome.verdict.figures
    also = ["cut"] * bool(told["cut"]) + ["too late"] * outcome.faults.get("too late", 0)
    return [*(name for name in missed(told) if name != "longest_gap_s"), *also]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drill", choices=("rolling", "spot", "zone"))
    parser.add_argument("--rounds", type=int, default=2, help="of restarts (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], help="a process to restart; all when left out")
    parser.add_argument("--notice", type=float, default=30.0, help="seconds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="without the zone (default: %(default)s)")
    options = parser.parse_args()
    zone = Zone(options.seconds)
    plans = {"rolling": lambda: rolling(options.rounds, options.only), "spot": lambda: spot(options.notice)}
    plan = plans.get(options.drill, zone.plan)()
    with tempfile.TemporaryDirectory(prefix="weir-planned-") as folder:
        outcome = soak(Path(folder) / "drill", plan, say)
    more = zone.figures() if zone.seen else {}
    for each in zone.timeline() if zone.seen else ():
        say(each)
    for fault in outcome.verdict.faults[:50]:
        say(f"  ! {fault}")
    wrong = lost(outcome)
    if zone.seen:
        # Those who are asked at the very blow meet it, and are bounded by how soon it is noticed.
        wrong = [name for name in wrong if name not in ("failed_pct", "cut")]
        wrong += ["rto_s"] if more["rto_s"] > RTO else []
    say(f"lost: {', '.join(wrong) or 'nothing'}")
    line = {"drill": options.drill, **outcome.verdict.figures, **more, "done": outcome.faults, "machine": machine()}
    say(json.dumps(line))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
