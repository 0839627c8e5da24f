"""Weighted shares, the service gap and isolation from a flood: `make bench-fairness`.

Two tenants of weights 4 and 1 with more requests waiting than can run, over one, two and four gateways, their clients
spread over all of them and each tenant on one of its own; then a well-behaved tenant beside one that floods. Prints
tables and ends with one line of JSON; loadtest/README.md says what each figure is.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.figures import needed, percentile, table
from loadtest.overload import output
from loadtest.overload.meshes import Runner, completed, outcomes, overload_mesh
from loadtest.overload.output import progress, say
from loadtest.overload.samples import OK, Objective, Sample, deliveries, refused, service_gap
from loadtest.overload.senders import Route
from loadtest.overload.setting import CALIBRATION, QUALITY, Setting, Site, TenantSpec, run_header
from simulation.lengths import load
from simulation.workload import TenantLoad

FAST, MODEL = "weir-fast", "weir-quality"
LENGTHS = "azure-conversation"
CONTEXT = 384
"""Of the weights' runs: short requests, so that many of them make up a share."""
PEER_CONTEXT = 1024
"""Of the isolation's: longer ones, so that a flood of 20 shares is more than the workers and no more than the machine
can take."""
SLOTS = 16
CLIENTS = 30
"""Per tenant, twice as many as can run at all: both always have requests waiting."""
INPUT_COST, OUTPUT_COST = 1.0, 2.0
"""What admission charges for a token, by default."""
HEAVY, LIGHT = TenantSpec(id="heavy", weight=4.0), TenantSpec(id="light", weight=1.0)
CROWD = tuple(TenantSpec(id=f"crowd-{each}") for each in ("a", "b"))
VICTIM, FLOODER = TenantSpec(id="victim"), TenantSpec(id="flooder")
PEERS = (VICTIM, FLOODER, *CROWD)
"""Of equal weight, so that the share of each is a quarter."""
MODEST = 0.8
"""Of its share, what the victim asks for; the crowd asks for its whole share."""
CALM, FLOOD = 1.0, 20.0
"""Of its share, what the flooder asks for before and while it floods: before, the mesh is as full as it may be."""
TARGETS = {"weight_error_pct_max": "≤ 5", "service_gap_over_bound": "≤ 1", "victim_ttft_p95_ratio": "≤ 1.25"}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds; the warm-up is at the start of each run and in no figure."""

    weights: float
    capacity: float
    isolation: float
    rounds: int
    warm_up: float = 5.0
    gateways: Sequence[int] = (1, 2, 4)
    clients: int = CLIENTS


FULL = Times(weights=22.0, capacity=12.0, isolation=20.0, rounds=3)
QUICK = Times(weights=10.0, capacity=8.0, isolation=10.0, rounds=1)
SMOKE = Times(weights=2.0, capacity=3.0, isolation=2.0, rounds=1, warm_up=0.5, gateways=(2,), clients=12)


@dataclass(frozen=True, slots=True)
class Shares:
    """What two backlogged tenants received in the steady part of a run."""

    heavy: float
    """Tokens per second, prompts included."""
    light: float
    gap: float
    """Largest difference of charged service per weight over any interval, in cost units."""
    bound: float

    @property
    def ratio(self) -> float:
        """Of the heavy one's to the light one's."""
        return self.heavy / self.light if self.light else math.inf

    @property
    def error(self) -> float:
        """Per cent off the ratio of the weights."""
        return abs(self.ratio / (HEAVY.weight / LIGHT.weight) - 1) * 100


def shares(samples: Sequence[Sample], *, start: float, end: float) -> Shares:
    """From what the clients received. Pure.

    The bound is VTC's for two backlogged tenants, 2·max(w_p·L_input, w_q·M): L_input the longest prompt, M the most
    tokens that can be in the running batch. Service is divided by the weights; the smaller one is 1.
    """
    tokens = dict.fromkeys((HEAVY.id, LIGHT.id), 0.0)
    service: dict[str, list[tuple[float, float]]] = {HEAVY.id: [], LIGHT.id: []}
    weights = {spec.id: spec.weight for spec in (HEAVY, LIGHT)}
    for sample in samples:
        for at, prompt, produced in deliveries(sample):
            if start <= at < end:
                tokens[sample.tenant] += prompt + produced
            charged = INPUT_COST * prompt + OUTPUT_COST * produced
            service[sample.tenant].append((at, charged / weights[sample.tenant]))
    longest_prompt = max(sample.prompt_tokens for sample in samples)
    longest = max(sample.prompt_tokens + sample.output_tokens for sample in samples)
    for spec in (HEAVY, LIGHT):
        needed(len(service[spec.id]), f"token for {spec.id}: {outcomes(samples)}")
    return Shares(
        heavy=tokens[HEAVY.id] / (end - start),
        light=tokens[LIGHT.id] / (end - start),
        gap=service_gap(service[HEAVY.id], service[LIGHT.id], start=start, end=end),
        bound=2.0 * max(INPUT_COST * longest_prompt, OUTPUT_COST * SLOTS * longest),
    )


def backlogged(site: Site, placement: str, clients: int) -> tuple[list[TenantLoad], Mapping[str, Route]]:
    """Both tenants with a crowd of clients: "spread" over all gateways by Envoy, or each on its "own"."""
    lengths = load()[LENGTHS].for_context(CONTEXT)
    gateways = site.names("gateway")
    loads: list[TenantLoad] = []
    routes: dict[str, Route] = {}
    for number, spec in enumerate((HEAVY, LIGHT)):
        loads.append(TenantLoad(spec.id, weight=spec.weight, lengths=lengths, clients=clients, name=spec.id))
        own = gateways[number % len(gateways)]
        routes[spec.id] = (
            site.over_edge(spec.id, pause=0.2)
            if placement == "spread"
            else site.natively(spec.id, gateway=own, pause=0.2)
        )
    return loads, routes


def weights(runner: Runner, times: Times) -> dict[str, Shares]:
    """4:1 in one mesh, by placement of the clients."""
    found: dict[str, Shares] = {}
    gateways = len(runner.site.names("gateway"))
    for placement in ("spread", "own") if gateways > 1 else ("spread",):
        loads, routes = backlogged(runner.site, placement, times.clients)
        seconds = times.warm_up + times.weights
        samples = runner.run(f"{gateways}-{placement}", loads, routes, seconds, trace=True)
        found[placement] = shares(samples, start=times.warm_up, end=seconds)
        progress(f"{gateways} gateways, {placement}: {found[placement].ratio:.2f}:1; {outcomes(samples)}")
    return found


def isolation(runner: Runner, share: float, times: Times) -> dict[str, float]:
    """The victim's first tokens while another keeps to its share and while it floods, in turn."""
    first: dict[float, list[float]] = {CALM: [], FLOOD: []}
    missed = {CALM: 0, FLOOD: 0}
    routes = {spec.id: runner.site.over_edge(spec.id) for spec in PEERS}
    seconds = times.warm_up + times.isolation
    served = 0
    for number in range(times.rounds):
        for factor in (CALM, FLOOD) if number % 2 == 0 else (FLOOD, CALM):
            asks = {VICTIM.id: MODEST, FLOODER.id: factor}
            loads = [_peer(spec, share * asks.get(spec.id, 1.0)) for spec in PEERS]
            samples = runner.run(f"isolation-{number}-{factor:g}", loads, routes, seconds, seed=number + 1)
            own = [each for each in samples if each.tenant == VICTIM.id and each.at >= times.warm_up]
            first[factor] += [each.ttft for each in own if each.outcome == OK and each.ttft is not None]
            missed[factor] += sum(each.outcome != OK for each in own)
            flooder = [each for each in samples if each.tenant == FLOODER.id and each.at >= times.warm_up]
            if factor == FLOOD:
                served += sum(each.outcome == OK for each in flooder)
            p95 = _ms(first[factor], 0.95)
            progress(
                f"flooder at {factor:g} of its share: victim's TTFT p95 {p95:.0f} ms, "
                f"{missed[factor]} not served; flooder refused {sum(map(refused, flooder))} of {len(flooder)}"
            )
    rows = [
        (
            f"{factor:g}x its share",
            str(len(first[factor])),
            str(missed[factor]),
            *(f"{_ms(first[factor], q):.0f}" for q in (0.5, 0.95, 0.99)),
        )
        for factor in (CALM, FLOOD)
    ]
    say("\nthe victim's requests while the other one asks for")
    say(table(("", "served", "not served", "TTFT p50 ms", "p95", "p99"), rows))
    return {
        "victim_ttft_p95_ratio": _ms(first[FLOOD], 0.95) / _ms(first[CALM], 0.95),
        "victim_ttft_p95_ms_calm": _ms(first[CALM], 0.95),
        "victim_ttft_p95_ms_flood": _ms(first[FLOOD], 0.95),
        "victim_refused_share_calm": missed[CALM] / max(1, missed[CALM] + len(first[CALM])),
        "victim_refused_share_flood": missed[FLOOD] / max(1, missed[FLOOD] + len(first[FLOOD])),
        "flooder_served_over_share": served / (times.rounds * times.isolation * share),
    }


def _ms(seconds: Sequence[float], q: float) -> float:
    return percentile(seconds, q) * 1e3 if seconds else math.nan


def _peer(spec: TenantSpec, rate: float, *, clients: int = 0) -> TenantLoad:
    lengths = load()[LENGTHS].for_context(PEER_CONTEXT)
    return TenantLoad(spec.id, rate=rate, clients=clients, lengths=lengths, timeout=30.0, name=spec.id)


def capacity(runner: Runner, times: Times) -> float:
    """Requests per second that the mesh completes of the isolation's, when a few always wait."""
    loads = [_peer(spec, 0.0, clients=SLOTS * 5 // 4 // len(PEERS)) for spec in PEERS]
    routes = {spec.id: runner.site.over_edge(spec.id, pause=0.1) for spec in PEERS}
    seconds = times.warm_up + times.capacity
    samples = runner.run("capacity", loads, routes, seconds)
    rate = completed(samples, start=times.warm_up, end=seconds)
    progress(f"capacity {rate:.1f} requests/s")
    return rate


def measure(times: Times, folder: Path, extra: Sequence[str], usage: output.Usage) -> dict[str, float]:
    """Every figure."""
    setting = Setting(
        tenants=(HEAVY, LIGHT, *PEERS),
        # Nothing is declared of the fast tier: what waits there waits, so that both tenants stay backlogged.
        objectives={"quality": QUALITY, "fast": Objective(ttft=math.inf)},
    )
    found: dict[tuple[int, str], Shares] = {}
    figures: dict[str, float] = {}
    for gateways in times.gateways:
        settings = (f"replicas.gateway={gateways}", *extra)
        native = (HEAVY.id, LIGHT.id)
        with overload_mesh(folder, f"{gateways}-gateways", setting, settings=settings, native=native) as site:
            header = run_header(workers=2, discipline="fair", warmup=times.warm_up)
            runner = Runner(site, folder / "runs", usage, prefix=f"{gateways}", model=FAST, header=header)
            found |= {(gateways, placement): each for placement, each in weights(runner, times).items()}
            if gateways == 2:
                runner = Runner(site, folder / "runs", usage, prefix="2", model=MODEL, header=header)
                share = capacity(runner, times) / len(PEERS)
                figures |= isolation(runner, share, times)
    rows = [
        (
            f"{gateways} {'gateway' if gateways == 1 else 'gateways'}, {placement}",
            f"{each.heavy:.0f}",
            f"{each.light:.0f}",
            f"{each.ratio:.3f}",
            f"{each.error:.1f}",
            f"{each.gap:.0f}",
            f"{each.bound:.0f}",
        )
        for (gateways, placement), each in found.items()
    ]
    say("\nweights 4:1, both with requests waiting")
    say(table(("", "heavy tokens/s", "light", "ratio", "error %", "service gap", "VTC bound"), rows))
    figures["weight_error_pct_max"] = max(each.error for each in found.values())
    figures["service_gap_over_bound"] = max(each.gap / each.bound for each in found.values())
    for (gateways, placement), each in found.items():
        figures[f"weight_error_pct_{gateways}_{placement}"] = each.error
    return figures | usage.figures


def main() -> None:
    """Measure and print."""
    options = output.options(__doc__, smoke=True).parse_args()
    output.begin(options.nice)
    times = output.extent(options, FULL, QUICK, SMOKE)
    parts = output.Parts()
    with parts.part("fairness"), contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-fairness-")))
        parts.figures |= measure(times, folder, options.set, output.Usage())
    conditions = {
        "engine": f"simulated, {CALIBRATION}, 2 workers of {SLOTS // 2} sequences",
        "lengths": f"{LENGTHS}, scaled so that the 99th percentile of prompt + output is {CONTEXT} tokens (weights) "
        f"and {PEER_CONTEXT} (isolation)",
        "backlogged": f"{times.clients} clients of each tenant, each with one request at a time; spread through Envoy, "
        "or each tenant natively at one gateway; 2 limiters, 2 admission processes",
        "isolation": f"4 tenants of equal weight, Poisson, through Envoy: the victim asks for {MODEST} of its share, "
        f"the others for their whole share; then one of them for {FLOOD:g} times its share",
        "seconds": f"weights {times.weights:g} per run, isolation {times.rounds} x 2 x {times.isolation:g}, after "
        f"{times.warm_up:g} of warm-up each",
    }
    # What was served in a window hangs on the machine; in a smoke run's two seconds that may be nothing.
    output.finish("fairness", parts, TARGETS, conditions, left_out=TARGETS if options.smoke else ())


if __name__ == "__main__":
    main()
