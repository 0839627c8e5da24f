"""Tokens delivered against a limit under attack, and what the limiter itself can do: `make bench-quota`.

500 clients share one tenant of 10,000 tokens per minute, half of them through two gateways behind Envoy, half straight
at the internal API over xDS. They begin at once, try again after every refusal and vary what they ask for: no
max_tokens, several choices, one token. Prints a table and ends with one line of JSON.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.figures import needed, table
from loadtest.overload import output
from loadtest.overload.meshes import Runner, outcomes, overload_mesh
from loadtest.overload.output import say
from loadtest.overload.samples import OK, Objective, Sample, busiest_window, deliveries, failed
from loadtest.overload.setting import CALIBRATION, Setting, TenantSpec, run_header
from simulation.lengths import load
from simulation.workload import TenantLoad

LIMIT = 10_000
"""Tokens per minute."""
CLIENTS = 500
WINDOW = 60.0
PAUSE = 2.0
"""Mean seconds before a refused client tries again; Retry-After is not obeyed."""
MODEL = "weir-fast"
LENGTHS, CONTEXT = "azure-conversation", 512
CAPPED = TenantSpec(id="capped", tokens_per_minute=LIMIT)
EDGE, INTERNAL = "capped-edge", "capped-internal"
TARGETS = {"quota_overshoot_tokens": "= 0", "owner_loss_overshoot_tokens": "= 0", "state_ms_50k_tenants": "≤ 5"}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything; `limiter` and `accounts` are sizes of those benches, where not the usual ones."""

    seconds: float
    clients: int = CLIENTS
    limiter: Mapping[str, int] = field(default_factory=dict)
    accounts: Mapping[str, int] = field(default_factory=dict)


FULL, QUICK = Extent(150.0), Extent(75.0)
SMOKE = Extent(2.0, clients=50, limiter={"decisions": 2_000, "refusals": 640}, accounts={"kills": 10, "tenants": 2_000})


@dataclass(frozen=True, slots=True)
class Delivered:
    """What reached the clients."""

    most: float
    """Tokens in the busiest 60 seconds."""
    total: float
    seconds: float

    @property
    def used(self) -> float:
        """Of the most that the limit allows in the time, the part that was delivered: a limit's worth at the start, and
        another one whenever 60 seconds are over."""
        return self.total / (LIMIT * (1 + self.seconds // WINDOW))


def delivered(samples: Sequence[Sample], seconds: float) -> Delivered:
    """Prompt and output tokens by the time at which they arrived. Pure."""
    events = [(at, prompt + produced) for sample in samples for at, prompt, produced in deliveries(sample)]
    # Whole tokens: an answer's are spread over its events, which leaves a rounding error.
    return Delivered(round(busiest_window(events, WINDOW), 3), sum(amount for _, amount in events), seconds)


def loads(clients: int) -> list[TenantLoad]:
    """Half of the clients each way."""
    lengths = load()[LENGTHS].for_context(CONTEXT)
    return [TenantLoad(CAPPED.id, lengths=lengths, clients=clients // 2, name=name) for name in (EDGE, INTERNAL)]


def measure(extent: Extent, folder: Path, extra: Sequence[str], parts: output.Parts) -> None:
    """Every figure."""
    with parts.part("attack"):
        parts.figures |= attack(extent, folder, extra)
    with parts.part("limiter"):
        limiter = output.measured("loadtest.limiter_bench", **extent.limiter)
        parts.figures |= {name: limiter[name] for name in ("limiter_decisions_per_s", "limiter_p99_ms")}
    with parts.part("accounts"):
        parts.figures |= output.measured("loadtest.accounts_bench", **extent.accounts)


def attack(extent: Extent, folder: Path, extra: Sequence[str]) -> dict[str, float]:
    """What a crowd gets out of one tenant's limit."""
    seconds, usage = extent.seconds, output.Usage()
    setting = Setting(tenants=(CAPPED,), objectives={"fast": Objective(ttft=math.inf)})
    with overload_mesh(folder, "quota", setting, settings=extra, native=(CAPPED.id,)) as site:
        header = run_header(workers=2, discipline="fair")
        runner = Runner(site, folder / "runs", usage, prefix="quota", model=MODEL, header=header)
        routes = {
            EDGE: site.over_edge(CAPPED.id, pause=PAUSE, tricks=True),
            INTERNAL: site.natively(CAPPED.id, pause=PAUSE, tricks=True),
        }
        samples = runner.run("attack", loads(extent.clients), routes, seconds, trace=True)
    whole = delivered(samples, seconds)
    rows = []
    for name in (EDGE, INTERNAL):
        own = [sample for sample in samples if sample.load == name]
        part = delivered(own, seconds)
        served = sum(sample.outcome == OK for sample in own)
        rows.append((name, str(len(own)), str(served), f"{part.total:.0f}", f"{part.most:.0f}"))
    rows.append(("together", str(len(samples)), "", f"{whole.total:.0f}", f"{whole.most:.0f}"))
    say(f"\n{extent.clients} clients of one tenant with {LIMIT} tokens per minute, {seconds:g} s")
    say(table(("", "requests", "served", "tokens", "most in 60 s"), rows))
    say(f"  ends: {outcomes(samples)}")
    for name in (EDGE, INTERNAL):
        needed(sum(sample.outcome == OK for sample in samples if sample.load == name), f"request of {name} was served")
    return {
        "quota_overshoot_tokens": max(0.0, whole.most - LIMIT),
        "quota_most_tokens_60s": whole.most,
        "quota_used_share": whole.used,
        "quota_requests_per_s": len(samples) / seconds,
        "quota_failed": float(sum(map(failed, samples))),
        **usage.figures,
    }


def main() -> None:
    """Measure and print."""
    options = output.options(__doc__, smoke=True).parse_args()
    output.begin(options.nice)
    extent = output.extent(options, FULL, QUICK, SMOKE)
    parts = output.Parts()
    with contextlib.ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-quota-")))
        measure(extent, folder, options.set, parts)
    conditions = {
        "engine": f"simulated, {CALIBRATION}",
        "clients": f"{extent.clients}, half through Envoy and two gateways, half natively over xDS; a try every "
        f"{PAUSE:g} s on average after a refusal; max_tokens as wanted, left out, 1, or a quarter for each of 4",
        "lengths": f"{LENGTHS}, scaled so that the 99th percentile of prompt + output is {CONTEXT} tokens",
        "counted": "prompt tokens with the first event, output tokens as events came, in every half-open 60 s",
        "seconds": f"{extent.seconds:g}",
    }
    output.finish("quota", parts, TARGETS, conditions)


if __name__ == "__main__":
    main()
