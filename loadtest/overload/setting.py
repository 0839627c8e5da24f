"""A mesh prepared for a bench: tenants with plans, weights and limits, objectives, identities; and what it counts."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from weir.registry.v1 import registry_pb2, registry_pb2_grpc

from libs.authority.identity import Identity
from libs.config import TlsFiles
from libs.pki import issue
from libs.resources.codec import pack
from libs.rpc import make_channel
from loadtest import accounting, predictors
from loadtest.overload.samples import Objective
from loadtest.overload.senders import Route
from services.worker.calibration import report
from tests.support.mesh import ROOT, Mesh

PROFILE = "overload"
CALIBRATION = "deploy/calibration/weir-quality-quarter.toml"
QUALITY = Objective(ttft=2.0, itl=0.2, e2e=20.0)
"""The objective that benches declare for the tier of weir-quality, on engines that are a quarter as fast as measured:
the longest prompts alone take a quarter of a second there. Half of what deploy/seed declares."""
UNLIMITED = 10**9
_TIMEOUT = 10.0
_LABELS = re.compile(r'(\w+)="([^"]*)"')


PLAIN_PLANS = tuple(registry_pb2.PlanPolicy(id=name, weight=1.0) for name in ("paid", "free"))
"""Nothing is degraded: what does not fit is refused, so that goodput is of whole answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """A tenant as the registry shall know it. Limits of 0 are no limits."""

    id: str
    paid: bool = True
    weight: float = 1.0
    tokens_per_minute: int = 0
    requests_per_minute: int = 0
    concurrency: int = 0
    max_deadline: float = 60.0
    """Seconds."""
    plan_policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a bench writes into the registry before it starts."""

    tenants: Sequence[TenantSpec]
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """By tier, of the route "generate"; what is infinite is not declared."""
    plans: Sequence[registry_pb2.PlanPolicy] = PLAIN_PLANS
    """Replace what the mesh was seeded with."""


class Site:
    """A running mesh under a bench."""

    def __init__(self, mesh: Mesh, keys: Mapping[str, str]) -> None:
        self.mesh = mesh
        self.keys = keys
        """API key by tenant."""
        self.services: Mapping[str, Mapping[str, Any]] = mesh.file()["services"]

    @property
    def edge(self) -> str:
        """Envoy's plaintext address."""
        return str(self.services["envoy"]["plain_address"])

    @property
    def environ(self) -> dict[str, str]:
        """For a process that speaks xDS."""
        return {"GRPC_XDS_BOOTSTRAP": self.mesh.env["GRPC_XDS_BOOTSTRAP"]}

    def names(self, service: str) -> list[str]:
        """Processes of a service, in order."""
        return [name for name, each in self.services.items() if each["service"] == service]

    def over_edge(self, tenant: str, **options: Any) -> Route:
        """OpenAI's API through Envoy."""
        return Route(address=self.edge, key=self.keys[tenant], **options)

    def natively(self, tenant: str, gateway: str = "", **options: Any) -> Route:
        """gRPC past the edge as the tenant's workload: over xDS, or to one gateway by name."""
        target = self.services[gateway]["address"] if gateway else "xds:///gateway.weir.internal"
        return Route(target=target, tls=self._identity(tenant), **options)

    def _identity(self, tenant: str) -> TlsFiles:
        files = issue(self.mesh.state / "pki", workload(tenant))
        return TlsFiles(ca=files.ca, cert=files.cert, key=files.key)

    def pids(self) -> dict[str, int]:
        """Every process of the mesh, the supervisor included, as it is now."""
        status = self.mesh.weir_json("status")
        return {row["name"]: int(row["pid"]) for row in status["processes"]} | {"supervisor": int(status["pid"])}

    async def scrape(self, service: str) -> list[dict[str, float]]:
        """The metrics of each process of a service that answers."""
        addresses = [str(self.services[name]["metrics"]) for name in self.names(service)]
        answers = await asyncio.gather(*map(accounting.scrape, addresses), return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def workload(tenant: str) -> str:
    """The name of the workload that acts as a tenant."""
    return f"load-{tenant}"


async def prepare(mesh: Mesh, setting: Setting) -> Site:
    """Wait until predictors are no longer loading, write the setting into the mesh's registry and make keys. What is in
    force follows within moments: callers wait with `settled`.

    :raises TimeoutError: predictors load and load.
    """
    await predictors.settled(mesh.state)
    file = mesh.file()
    address = file["services"]["registry"]["address"]
    channel = make_channel(address, tls=mesh.operator(), server_name="registry.weir.internal", translate_errors=True)
    keys: dict[str, str] = {}
    async with channel:
        stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        # What the mesh was seeded with, or had from an earlier run, is replaced.
        wanted = [*setting.plans, *(slo(tier, objective) for tier, objective in setting.objectives.items())]
        wanted += [registry_pb2.ModelGrant(subject=f"plan:{plan.id}", namespaces=["default"]) for plan in setting.plans]
        for spec in setting.tenants:
            wanted += [tenant(spec), limits(spec)]
        await stub.Apply(registry_pb2.ApplyRequest(resources=map(pack, wanted)), timeout=_TIMEOUT)
        for spec in setting.tenants:
            request = registry_pb2.CreateKeyRequest(
                tenant=spec.id, scopes=["inference", "models.read"], note="load test"
            )
            keys[spec.id] = (await stub.CreateKey(request, timeout=_TIMEOUT)).secret
    return Site(mesh, keys)


def tenant(spec: TenantSpec) -> registry_pb2.Tenant:
    """The registry's record. Pure."""
    return registry_pb2.Tenant(
        id=spec.id,
        display_name=spec.id,
        plan=registry_pb2.PLAN_PAID if spec.paid else registry_pb2.PLAN_FREE,
        weight=spec.weight,
        workloads=[Identity(workload(spec.id)).spiffe],
        max_deadline=duration(spec.max_deadline),
        plan_policy=spec.plan_policy,
    )


def limits(spec: TenantSpec) -> registry_pb2.Limits:
    """Its limits. Pure."""
    return registry_pb2.Limits(
        tenant=spec.id,
        model="*",
        requests_per_minute=spec.requests_per_minute or UNLIMITED,
        tokens_per_minute=spec.tokens_per_minute or UNLIMITED,
        concurrency=spec.concurrency or UNLIMITED // 1000,
    )


def slo(tier: str, objective: Objective) -> registry_pb2.Slo:
    """A declared objective. Pure."""
    declared = {"ttft_p95": objective.ttft, "itl_p95": objective.itl, "e2e_p95": objective.e2e}
    times = {name: duration(seconds) for name, seconds in declared.items() if seconds < math.inf}
    return registry_pb2.Slo(route="generate", tier=tier, **times)


def duration(seconds: float) -> Duration:
    """As protobuf's."""
    whole = int(seconds)
    return Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))


def run_header(*, workers: int, discipline: str, **more: Any) -> dict[str, Any]:
    """The first line of a recorded run, for `simulation.validate`."""
    sizes = report.read(ROOT / CALIBRATION).sizes
    return {
        "workers": workers,
        "zones": ["zone-a", "zone-b"],
        "calibration": CALIBRATION,
        "sizes": {
            "block_size": sizes.block_size,
            "total_blocks": 1024,
            "max_running": 8,
            "max_step_tokens": 256,
            "max_context": sizes.max_context,
        },
        "ttft_slo": QUALITY.ttft,
        "itl_slo": QUALITY.itl,
        "e2e_slo": QUALITY.e2e,
        "discipline": discipline,
        **more,
    }


def total(scrapes: Iterable[Mapping[str, float]], name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels over several processes."""
    return sum(value for scrape in scrapes for sample, value in scrape.items() if _fits(sample, name, labels))


def by_label(scrapes: Iterable[Mapping[str, float]], name: str, label: str) -> dict[str, float]:
    """The sums of a metric's samples by the value of one label."""
    found: dict[str, float] = {}
    for scrape in scrapes:
        for sample, value in scrape.items():
            if _fits(sample, name, {}) and (key := dict(_LABELS.findall(sample)).get(label)) is not None:
                found[key] = found.get(key, 0.0) + value
    return found


def _fits(sample: str, name: str, labels: Mapping[str, str]) -> bool:
    if sample.partition("{")[0] != name:
        return False
    have = dict(_LABELS.findall(sample)) if labels else {}
    return all(have.get(key) == value for key, value in labels.items())


def histogram_quantile(
    before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]], name: str, q: float
) -> float:
    """The upper bound of the bucket that holds the q-quantile of what was observed in between; nan when nothing was."""
    counts: dict[float, float] = {}
    for sign, scrapes in ((-1.0, before), (1.0, after)):
        for edge, value in by_label(scrapes, f"{name}_bucket", "le").items():
            counts[float(edge)] = counts.get(float(edge), 0.0) + sign * value
    ordered = sorted(counts.items())
    if not ordered or ordered[-1][1] <= 0:
        return float("nan")
    return next(edge for edge, count in ordered if count >= q * ordered[-1][1] - 1e-9)


async def until(condition: Callable[[], Any], *, seconds: float, what: str, every: float = 0.1) -> None:
    """Wait for an awaitable condition of other processes.

    :raises TimeoutError: it did not come true.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if await condition():
            return
        await asyncio.sleep(every)
    raise TimeoutError(f"{what} did not come true in {seconds} s")


async def drained(site: Site) -> None:
    """Wait until no request is queued or runs, and the edge is told to shed nobody: the next run begins afresh."""

    async def empty() -> bool:
        admission = await site.scrape("admission")
        worker = await site.scrape("worker")
        queued = total(admission, "weir_admission_queue_depth") + total(admission, "weir_admission_held_requests")
        running = total(worker, "weir_worker_num_requests_running") + total(worker, "weir_worker_num_requests_waiting")
        return queued + running + total(admission, "weir_admission_shed_tenants") == 0

    await until(empty, seconds=60.0, what="an empty mesh")


def out_file(folder: Path, name: str) -> Path:
    """Where a run's samples go."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.jsonl"
