"""Bottlenecks planted one by one, and healthy meshes: what `libs.diagnosis` must find, and where it must be silent.

Prefill, decode, KV memory and a tenant's flood come from the simulator, with admission's own policy and metrics; what
it does not have (processors, readers, connections, loads of models, a placement gone wrong) from the services' own
metric objects (`composed.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from libs.diagnosis import Process, Scrape, Stage
from loadtest.observe.composed import SECONDS, Act, scrapes
from simulation.scenario import Cluster, Scenario, TenantSpec
from simulation.scrapes import Observer

_MOMENTS = (20.0, 30.0)
_EDGE = """# TYPE envoy_http_downstream_cx_active gauge
envoy_http_downstream_cx_active{{envoy_http_conn_manager_prefix="public"}} {active}
# TYPE envoy_listener_downstream_global_cx_overflow counter
envoy_listener_downstream_global_cx_overflow{{envoy_listener_address="127.0.0.1_18001"}} {refused}
"""
Scrapes = tuple[Scrape, Scrape]


class Planted(NamedTuple):
    """A situation."""

    name: str
    stage: Stage | None
    """What binds; None: nothing does."""
    scrapes: Callable[[], Scrapes]


def planted() -> Iterator[Planted]:
    """The bottlenecks, at least one per stage."""
    long, short = {"lengths": "6000+10"}, {"lengths": "50+500"}
    few = Cluster(workers=4, sizes={"total_blocks": 1024})
    growing = Cluster(workers=4, sizes={"total_blocks": 1024}, preemptive=True)
    yield _simulated("prefill", Stage.PREFILL, _two(2.0, **long))
    yield _simulated("prefill, much", Stage.PREFILL, _two(4.0, **long))
    yield _simulated("decode", Stage.DECODE, _two(2.0, **short))
    yield _simulated("decode, a little", Stage.DECODE, _two(1.3, **short))
    yield _simulated("blocks kept", Stage.KV, _two(2.0, lengths="1500+500"), few)
    yield _simulated("blocks as they come", Stage.KV, _two(2.0, lengths="500+1500"), growing)
    flood = (TenantSpec(tenant="victim", load=0.4), TenantSpec(tenant="flooder", load=4.0))
    yield _simulated("one tenant", Stage.TENANT, flood)
    yield Planted("gateway CPU", Stage.GATEWAY_CPU, lambda: scrapes(_gateway(cpu=1.02), *_pool(waiting=0)))
    yield Planted("limiter shard", Stage.LIMITER, lambda: scrapes(*_limiters(0.97, 0.2), *_pool(waiting=0)))
    yield Planted("safety", Stage.SAFETY, lambda: scrapes(Act(Process("safety-1", "safety"), cpu=0.95), *_pool()))
    yield Planted(
        "router", Stage.DECISION_CPU, lambda: scrapes(Act(Process("router-1", "router"), cpu=0.96), *_pool(waiting=0))
    )
    yield Planted("edge connections", Stage.EDGE_CONNECTIONS, lambda: scrapes(*_pool(waiting=0), edge=_envoy(120)))
    yield Planted("slow reader, stuck", Stage.SLOW_READER, lambda: scrapes(_gateway(unread=400_000), *_pool(waiting=0)))
    yield Planted("slow reader, ended", Stage.SLOW_READER, lambda: scrapes(_gateway(ended=3), *_pool(waiting=0)))
    yield Planted("cold model", Stage.COLD_MODEL, lambda: scrapes(*_pool(waiting=0, coming="loading", refused=12)))
    yield Planted("cold model, failed", Stage.COLD_MODEL, lambda: scrapes(*_pool(coming="failed", refused=4)))
    gone = frozenset({Process("safety-1", "safety")})
    yield Planted("a frozen process", Stage.SILENT, lambda: scrapes(*_pool(running=(64, 64, 64)), silent=gone))
    yield Planted("skewed placement", Stage.PLACEMENT, lambda: scrapes(*_pool(running=(64, 64, 6))))
    yield Planted("worker CPU", Stage.HOST_CPU, lambda: scrapes(*_pool(waiting=0, stepping=0.3, cpu=1.0)))


def healthy() -> Iterator[Planted]:
    """Meshes in which nothing binds: loads below the capacity, clusters of arrivals, batch work that waits, loads of
    versions that nobody asks for yet, readers that keep up."""
    for load in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8):
        yield _simulated(f"{load:.0%} of the capacity", None, _two(load))
    for variation in (2.0, 3.0):
        yield _simulated(f"clusters of arrivals, {variation:g}", None, _two(0.6, variation=variation))
    for lengths in ("6000+10", "50+500", "1500+500"):
        yield _simulated(f"60% of {lengths}", None, _two(0.6, lengths=lengths))
    batch = (*_two(0.5), TenantSpec(tenant="nightly", queue_class="batch", load=1.0, timeout=600.0))
    yield _simulated("batch work waits", None, batch)
    unequal = (TenantSpec(tenant="large", load=0.6), TenantSpec(tenant="small", load=0.05))
    yield _simulated("one tenant has most of the load", None, unequal)
    yield Planted("idle", None, lambda: scrapes(_gateway(), *_pool(waiting=0, running=(0, 0, 0)), edge=_envoy(0)))
    yield Planted("at work", None, lambda: scrapes(_gateway(cpu=0.6, unread=9_000), *_limiters(0.4, 0.5), *_pool(0)))
    yield Planted("a version comes", None, lambda: scrapes(*_pool(waiting=0, coming="loading")))
    yield Planted("one sequence on a fast host", None, lambda: scrapes(*_pool(waiting=0, stepping=0.3, cpu=0.4)))
    yield Planted("placement follows prefixes", None, lambda: scrapes(*_pool(waiting=0, running=(60, 50, 6))))


def _simulated(name: str, stage: Stage | None, tenants: tuple[TenantSpec, ...], on: Cluster | None = None) -> Planted:
    def run() -> Scrapes:
        scenario = Scenario(seconds=35.0, cluster=on or Cluster(workers=4), tenants=tenants)
        scenario.check()
        observer = Observer(scenario, moments=_MOMENTS, pool=name)
        observer.run()
        before, after = observer.scrapes
        return before, after

    return Planted(name, stage, run)


def _two(load: float, **fields: object) -> tuple[TenantSpec, ...]:
    made = [TenantSpec(tenant=name, load=load / 2, **fields) for name in ("acme", "globex")]  # type: ignore[arg-type]
    return tuple(made)


def _envoy(refused: int) -> dict[str, tuple[str, str]]:
    return {"envoy-1": (_EDGE.format(active=900, refused=7), _EDGE.format(active=1000, refused=7 + refused))}


def _gateway(*, cpu: float = 0.2, unread: int = 200, ended: int = 0) -> Act:
    act = Act(Process("gateway-1", "gateway"), cpu=cpu)
    act.gauge("UNREAD", unread).gauge("ACTIVE", 20)
    return act.does(lambda metrics: metrics.SLOW_READERS.labels("stalled").inc(ended))


def _limiters(*cpu: float) -> list[Act]:
    return [Act(Process(f"ratelimit-{each}", "ratelimit"), cpu=share) for each, share in enumerate(cpu, 1)]


def _pool(
    waiting: int = 0,
    *,
    running: tuple[int, ...] = (40, 40, 40),
    stepping: float = 0.98,
    cpu: float = 0.3,
    coming: str = "",
    refused: int = 0,
) -> list[Act]:
    """Admission with one pool of workers with 64 places and 1,000 blocks each, of which a sequence takes 10."""
    waiting = waiting or (40 if max(running) == 64 else 0)
    pool = "composed"
    admission = Act(Process("admission-1", "admission")).gauge("QUEUED", waiting, pool, "paid")
    admission.does(lambda metrics: metrics.OUTCOMES.labels(pool, "paid", "granted").inc(200))
    admission.does(lambda metrics: metrics.OUTCOMES.labels(pool, "paid", "no_workers").inc(refused))
    wait = 2.0 if waiting else 0.002
    for _ in range(200):
        admission.does(lambda metrics: metrics.WAIT.labels(pool, "paid").observe(wait))
    acts = [admission]
    for number, sequences in enumerate(running):
        process = Process(f"worker-{number}", "worker")
        admission.gauge("FREE_SEQUENCES", 64 - sequences, pool, process.name)
        admission.gauge("FREE_BLOCKS", 1000 - 10 * sequences, pool, process.name)
        acts.append(_worker(process, sequences, stepping=stepping, cpu=cpu, coming=coming))
    return acts


def _worker(process: Process, sequences: int, *, stepping: float, cpu: float, coming: str) -> Act:
    act = Act(process, cpu=cpu).gauge("RUNNING", sequences).gauge("WAITING", 0)
    act.gauge("KV_USAGE", sequences / 100).gauge("KV_FREE", 1000 - 10 * sequences).gauge("PREFILL_RATE", 20_000)
    for version, state in {"weir-fast@1": "ready", **({"weir-quality@2": coming} if coming else {})}.items():
        act.has(lambda metrics, version=version, state=state: metrics.MODELS.model_state(version, state))
        act.leaves(lambda metrics, version=version: metrics.MODELS.model_state(version, None))
    if sequences:
        act.does(lambda metrics: metrics.STEPS.observe(stepping * SECONDS))
        act.does(lambda metrics: metrics.PROMPT_TOKENS.inc(40_000))
        act.does(lambda metrics: metrics.GENERATION_TOKENS.inc(20_000))
    return act
