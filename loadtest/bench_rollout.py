"""Bad versions found out, healthy ones left alone, users kept in place: `make bench-rollout`.

Simulated: healthy canaries under three planted biases, and faults of which the times to their rollback are told. On
one mesh with five aliases: seeded canaries that fail or answer slowly, as many healthy ones, canaries that only cost
more, a step from 10% to 20%; then a large registry under the control plane. Prints tables and ends with one line of
JSON; loadtest/README.md says what each figure is.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from weir.registry.v1 import registry_pb2 as pb

from libs.clock.stamps import unix
from libs.rollouts import phase_of
from loadtest import bench_xds
from loadtest.figures import percentile, spread, table
from loadtest.overload import output
from loadtest.overload.output import progress, say
from loadtest.rollout import biases
from loadtest.rollout.drill import SLOW
from loadtest.rollout.site import Faults, RolloutSite, rollout_site
from loadtest.rollout.traffic import Seen, Traffic
from loadtest.rollout.trial import Harm, NoHarmError, flaps, harm, moved_pct

ALIASES = tuple(f"demo-{each}" for each in range(5))
RATE = 20.0
"""Requests per second on each alias."""
USERS = 2_000
STICKY_USERS = 300
"""Few enough that everybody comes back within a step."""
KINDS: tuple[tuple[str, dict[str, float]], ...] = (
    ("errors 30%", {"error_rate": 0.3}),
    ("TTFT 3x", dict(SLOW)),
)
PARTS = ("simulated", "bad", "healthy", "cost", "sticky", "large")
WITHOUT_MESH = frozenset({"simulated", "large"})
TARGETS = {
    "detect_s_p50": "≤ 15",
    "traffic_off_s_max": "≤ 1",
    "healthy_rollbacks": "= 0",
    "healthy_rollbacks_slower_successes": "= 0",
    "healthy_rollbacks_few_keys": "= 0",
    "healthy_rollbacks_unequal_tenants": "= 0",
    "sticky_flaps": "= 0",
    "users_moved_pct_10_to_20": "≤ 12",
}
PART_OF = {
    "detect_s_p50": "bad",
    "traffic_off_s_max": "bad",
    "healthy_rollbacks": "healthy",
    "sticky_flaps": "sticky",
    "users_moved_pct_10_to_20": "sticky",
}
"""Of the targets; the others are of "simulated"."""
_END = 120.0
"""Seconds within which a bad canary must be off."""


@dataclass(frozen=True, slots=True)
class Times:
    """How much is run; seconds."""

    rounds: int
    """Of one canary on each alias, bad and healthy alike."""
    healthy_step: float
    """Of each of the two steps of a healthy canary."""
    sticky: float
    """Of each of the two steps."""
    cost: float
    """For a costly canary to be found out."""
    changes: int
    """Of a weight in a large registry."""


FULL = Times(rounds=4, healthy_step=25.0, sticky=30.0, cost=240.0, changes=200)
QUICK = Times(rounds=1, healthy_step=10.0, sticky=10.0, cost=90.0, changes=40)


@dataclass(frozen=True, slots=True)
class Canary:
    """One bad canary and what it did."""

    kind: str
    alias: str
    harm: Harm
    ttft_ratio: float
    """Median time to the first token of the canary's answers over the baseline's."""
    reason: str
    """The decision's words."""


@asynccontextmanager
async def callers(site: RolloutSite, *, users: int, rate: float = RATE) -> AsyncIterator[dict[str, Traffic]]:
    """Traffic on every alias, for as long as the block runs."""
    every = {alias: site.traffic(alias, rate=rate, users=users, seed=number) for number, alias in enumerate(ALIASES)}
    tasks = [asyncio.create_task(each.run()) for each in every.values()]
    try:
        yield every
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def bad(site: RolloutSite, times: Times) -> dict[str, float]:
    """Seeded canaries at 10% that fail or are slow, `times.rounds` on each alias: how soon they are found out."""
    found: list[Canary] = []
    async with callers(site, users=USERS) as traffic:
        await asyncio.sleep(2.0)
        for number in range(times.rounds):
            tasks = []
            for place, alias in enumerate(ALIASES):
                kind, faults = KINDS[(number * len(ALIASES) + place) % len(KINDS)]
                tasks.append(_bad(site, traffic[alias], kind, faults, f"bad-{number}"))
            found += await asyncio.gather(*tasks)
            progress("; ".join(f"{each.kind} {each.harm.detect:.1f} s" for each in found[-len(ALIASES) :]))
    return _harm_figures(found)


async def _bad(site: RolloutSite, traffic: Traffic, kind: str, faults: Faults, version: str) -> Canary:
    alias = traffic.alias
    candidate = await site.push(alias, version, faults)
    begin = len(traffic.seen)
    started = await site.start(
        alias, candidate, "--steps", "10,50", "--step-duration", "60s", "--set", "sticky=user", reason="a bench"
    )
    ended = await site.ended(alias, started, seconds=_END)
    if phase_of(ended) != pb.ROLLOUT_PHASE_ROLLED_BACK:
        raise RuntimeError(f"{candidate} ({kind}) was not rolled back: {ended.state}")
    decided = unix(ended.state.ended_at)
    await asyncio.sleep(2.0)  # what was sent within a second of the decision shall have been answered
    try:
        measured = harm(traffic.seen[begin:], candidate=candidate, decided=decided, slow="TTFT" in kind)
    except NoHarmError as error:
        raise RuntimeError(f"{error}, and yet it was taken back: {ended.state.reason}") from error
    first: dict[bool, list[float]] = {True: [], False: []}
    for each in traffic.seen[begin:]:
        if each.ttft is not None:
            first[each.version == candidate].append(each.ttft)
    ratio = percentile(first[True], 0.5) / percentile(first[False], 0.5)
    return Canary(kind, alias, measured, ratio, ended.state.reason)


async def healthy(site: RolloutSite, times: Times) -> dict[str, float]:
    """Control runs: canaries no different from the baseline through two steps; how many ran, and how many were rolled
    back."""
    ran, lost = 0, 0
    async with callers(site, users=USERS):
        await asyncio.sleep(2.0)
        for number in range(times.rounds):
            ends = await asyncio.gather(*(_healthy(site, alias, f"good-{number}", times) for alias in ALIASES))
            ran += len(ends)
            for alias, end in zip(ALIASES, ends, strict=True):
                if phase_of(end) == pb.ROLLOUT_PHASE_ROLLED_BACK:
                    lost += 1
                    progress(f"{alias}: a healthy canary was rolled back: {end.state.reason}")
            progress(f"{ran} healthy canaries, {lost} rolled back")
    return {"healthy_runs": float(ran), "healthy_rollbacks": float(lost)}


async def _healthy(site: RolloutSite, alias: str, version: str, times: Times) -> pb.Rollout:
    candidate = await site.push(alias, version)
    duration = f"{times.healthy_step:g}s"
    started = await site.start(
        alias,
        candidate,
        *("--steps", "10,50", "--step-duration", duration, "--step-samples", "20", "--set", "sticky=user"),
        reason="a control run of a bench",
    )
    # Through both steps, or held at one of them for want of certainty: only a rollback is a false alarm.
    with contextlib.suppress(TimeoutError):
        return await site.ended(alias, started, seconds=2 * times.healthy_step + 30.0)
    await site.weir("rollout", "abort", alias, "--reason", "the control run is over")
    return site.view.snapshot.rollouts[alias]


async def costly(site: RolloutSite, times: Times) -> dict[str, float]:
    """Canaries whose tokens cost more, with the same latency: how many requests of theirs it took to tell."""
    figures: dict[str, float] = {}
    async with callers(site, users=USERS):
        for alias, percent in zip(ALIASES, (3, 100), strict=False):
            candidate = await site.push(alias, f"cost-{percent}")
            baseline = site.view.snapshot.aliases[alias].targets[0].model_version
            for version, factor in ((baseline, 1.0), (candidate, 1.0 + percent / 100.0)):
                await site.price(version, factor)
            started = await site.start(
                alias,
                candidate,
                *(
                    "--steps",
                    "50",
                    "--step-duration",
                    "10m",
                    "--set",
                    "sticky=user",
                    "--gate",
                    "cost_per_1k_tokens<=1%",
                ),
                reason="a bench",
            )
            stopped = await site.reach(
                alias,
                started,
                lambda found: found.state.held or phase_of(found) == pb.ROLLOUT_PHASE_ROLLED_BACK,
                seconds=times.cost,
                what=f"the discovery that it costs {percent}% more",
            )
            status = await site.weir("rollout", "status", alias)
            gate = next(each for each in status["gates"] if each["gate"]["metric"] == "cost_per_1k_tokens")
            figures[f"cost_gate_samples_{percent}pct"] = float(gate["samples"])
            progress(f"+{percent}%: {stopped.state.reason}")
            if phase_of(stopped) != pb.ROLLOUT_PHASE_ROLLED_BACK:
                await site.weir("rollout", "abort", alias, "--reason", "the bench is over")
    return figures


async def sticky(site: RolloutSite, times: Times) -> dict[str, float]:
    """Users at 10%, then at 20%, on every alias: who moved, and whether anybody met two versions within a step."""
    async with callers(site, users=STICKY_USERS) as traffic:
        found = await asyncio.gather(*(_sticky(site, each, times) for each in traffic.values()))
    before, after = ([each for steps in found for each in steps[number]] for number in (0, 1))
    return {
        "users_moved_pct_10_to_20": moved_pct(before, after),
        "sticky_flaps": float(sum(flaps(step) for steps in found for step in steps)),
        "sticky_users": float(len({(each.alias, each.user) for each in after})),
    }


async def _sticky(site: RolloutSite, traffic: Traffic, times: Times) -> tuple[list[Seen], list[Seen]]:
    """What callers of one alias saw at 10% and at 20%."""
    alias = traffic.alias
    candidate = await site.push(alias, "sticky")
    # A price on one side alone would hold the rollout: the cost gate must be shown to hold.
    for version in (site.view.snapshot.aliases[alias].targets[0].model_version, candidate):
        await site.price(version, 1.0)
    started = await site.start(
        alias,
        candidate,
        # The third step is there so that the second one does not end in a promotion.
        *(
            "--steps",
            "10,20,30",
            "--step-duration",
            f"{times.sticky:g}s",
            "--step-samples",
            "20",
            "--set",
            "sticky=user",
        ),
        reason="a bench",
    )

    async def entered(step: int) -> float:
        """When the step began, in Unix seconds."""
        rollout = await site.reach(
            alias,
            started,
            lambda found: phase_of(found) == pb.ROLLOUT_PHASE_CANARY and found.state.step == step,
            seconds=times.sticky + 60.0,
            what=f"step {step}",
        )
        return unix(rollout.state.entered_at)

    ten = await entered(0)
    twenty = await entered(1)
    await asyncio.sleep(times.sticky - 2.0)
    await site.weir("rollout", "abort", alias, "--reason", "the bench is over")
    # A request under way while the weight changes belongs to either step: a second on both sides is left out.
    first = [each for each in traffic.seen if ten + 1.0 < each.sent < twenty - 1.0]
    second = [each for each in traffic.seen if twenty + 1.0 < each.sent < twenty + times.sticky - 2.0]
    return first, second


async def measure(times: Times, folder: Path, extra: Sequence[str], only: Collection[str], parts: output.Parts) -> None:
    """Every figure of these parts that needs a mesh."""
    async with rollout_site(folder, settings=extra) as site:
        await asyncio.gather(*(_baseline(site, alias) for alias in ALIASES))
        await site.answered(ALIASES)
        progress("the mesh is up and answers on every alias")
        for name, run in (("bad", bad), ("healthy", healthy), ("cost", costly), ("sticky", sticky)):
            if name in only:
                with parts.part(name):
                    parts.figures |= await run(site, times)


async def _baseline(site: RolloutSite, alias: str) -> None:
    version = await site.push(alias, "1")
    await site.alias(alias, version)


def _harm_figures(found: Sequence[Canary]) -> dict[str, float]:
    say("\nbad canaries at 10%, 20 requests/s per alias; medians (range)")
    rows = []
    for kind, _ in KINDS:
        of_kind = [each.harm for each in found if each.kind == kind]
        if of_kind:
            rows.append(
                (
                    kind,
                    str(len(of_kind)),
                    spread([each.detect for each in of_kind], 1),
                    spread([each.off for each in of_kind]),
                    spread([each.harmed_pct for each in of_kind], 1),
                    spread([float(each.samples) for each in of_kind], 0),
                    spread([each.ttft_ratio for each in found if each.kind == kind], 1),
                )
            )
    say(table(("", "runs", "detected after s", "off after s", "harmed %", "answers until then", "TTFT ratio"), rows))
    for each in found[: len(KINDS)]:
        say(f"  for instance: {each.reason}")
    every = [each.harm for each in found]
    return {
        "detect_s_p50": statistics.median(each.detect for each in every),
        "detect_s_max": max(each.detect for each in every),
        "traffic_off_s_max": max(each.off for each in every),
        "traffic_off_s_p50": statistics.median(each.off for each in every),
        "harmed_pct_p50": statistics.median(each.harmed_pct for each in every),
        "bad_runs": float(len(every)),
    }


def simulated(*, quick: bool) -> dict[str, float]:
    """See `loadtest.rollout.biases`."""
    say("\nsimulated rollouts (no mesh): healthy ones under planted biases, and faults")
    if quick:
        figures = biases.measure(healthy=5, bad=1, faults=biases.ERRORS_ONLY)
    else:
        figures = biases.measure(healthy=100, bad=11)
    rows = [
        (name, f"{figures[name]:g}", f"{figures[f'{name}_ended_only']:g}")
        for name in figures
        if f"{name}_ended_only" in figures
    ]
    say(table(("simulated", "as it is", "by ended requests alone"), rows))
    return figures


def main() -> None:
    """Measure and print."""
    parser = output.options(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    options = parser.parse_args()
    output.begin(options.nice)
    times = output.extent(options, FULL, QUICK)
    parts = output.Parts()
    if "simulated" in options.only:
        with parts.part("simulated"):
            parts.figures |= simulated(quick=options.quick)
    if not set(options.only) <= WITHOUT_MESH:
        with parts.part("mesh"), contextlib.ExitStack() as stack:
            folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-rollout-")))
            uvloop.run(measure(times, folder, options.set, options.only, parts))
    if "large" in options.only:
        progress("a large registry: 200 models, 2,000 tenants")
        with parts.part("large"):
            parts.figures |= bench_xds.measure_large(models=200, tenants=2_000, samples=times.changes)
    conditions: dict[str, Any] = {
        "engine": "simulated, steps of 50 ms, 2 workers",
        "load": f"{len(ALIASES)} aliases, {RATE:g} requests/s each, Poisson, through Envoy, {USERS} users",
        "simulated": "simulated_* and healthy_rollbacks_*: no mesh; callers and models are simulated, counts, reports "
        "and decisions are the real ones; ended_only: told nothing of beginnings and keys",
        "canary": "10%, sticky by user; errors: 30% of its answers; slow: three times the time to the first token",
    }
    left_out = [name for name in TARGETS if PART_OF.get(name, "simulated") not in options.only]
    output.finish("rollout", parts, TARGETS, conditions, left_out=left_out)


if __name__ == "__main__":
    main()
