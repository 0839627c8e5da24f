"""What can bind, each a small entry: how it shows, for whom, and what to do. Pure.

The order is that of precedence: what comes earlier explains what comes later. A gateway without processor time leaves
workers idle; a flood of one tenant fills KV memory and steps; and what decodes all the time need not be too slow, if
its neighbour idles. Who does not answer goes before all: everybody may wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from libs.diagnosis import thresholds as limit
from libs.diagnosis.findings import Cost, Evidence, Finding, Remedy, Stage
from libs.diagnosis.pools import Pool, Worker, ready
from libs.diagnosis.window import Process, Window


class Seen(NamedTuple):
    """Something that binds, as a rule's look sees it."""

    whom: dict[str, str]
    evidence: tuple[Evidence, ...]
    workers: tuple[str, ...] = ()


class Rule(NamedTuple):
    """One entry."""

    stage: Stage
    look: Callable[[Window, list[Pool]], Iterable[Seen]]
    remedies: tuple[Remedy, ...]


def _setting(what: str) -> Remedy:
    return Remedy(what, Cost.NOTHING)


def _process(what: str) -> Remedy:
    return Remedy(what, Cost.PROCESS)


_WORKER = Remedy("one more worker in this pool (deploy/topology.toml)", Cost.ACCELERATOR)


def _silent(window: Window, _: list[Pool]) -> Iterator[Seen]:
    for process in sorted(window.before.silent & window.after.silent):
        yield Seen(_who(process), (Evidence("scrapes that it did not answer", 2, "of 2", 0),))


def _connections(window: Window, _: list[Pool]) -> Iterator[Seen]:
    for envoy in window.of("envoy", "edge"):
        refused = sum(
            window.gained(envoy, name)
            for name in window.after.pages[envoy]
            if name == "envoy_listener_downstream_global_cx_overflow"
            or name == "envoy_listener_downstream_cx_overload_reject"
            or (name.startswith("envoy_connection_limit_") and name.endswith("limited_connections"))
        )
        if refused:
            now = window.span(envoy, "envoy_http_downstream_cx_active").after
            told = Evidence("connections refused", refused / window.seconds, "/s", 0)
            yield Seen({"process": envoy.name}, (told, Evidence("connections open", now, "")))


def _core(*services: str) -> Callable[[Window, list[Pool]], Iterable[Seen]]:
    def look(window: Window, _: list[Pool]) -> Iterator[Seen]:
        for process in window.of(*services):
            cpu = window.rate(process, "process_cpu_seconds_total")
            if cpu >= limit.CORE:
                others = [window.rate(each, "process_cpu_seconds_total") for each in window.of(process.service)]
                told = [Evidence("processor", cpu, "cores", limit.CORE)]
                if len(others) > 1:
                    told.append(Evidence("the idlest of its kind", min(others), "cores"))
                yield Seen(_who(process), tuple(told))

    return look


def _cold(window: Window, _: list[Pool]) -> Iterator[Seen]:
    """Nobody has a version that was asked for: some process is to have it, and requests are refused for want of it."""
    refused = sum(
        window.gained(each, "weir_admission_outcomes_total", outcome="no_workers") for each in window.of("admission")
    )
    refused += sum(
        window.gained(each, "weir_predictor_refused_total", reason="NO_WORKERS") for each in window.of("predictor")
    )
    if not refused:
        return
    for service in ("worker", "predictor"):
        prefix = f"weir_{service}_"
        there = {version for each in window.of(service) for version in ready(window, each, prefix)}
        coming: dict[tuple[str, str], list[str]] = {}
        for process in window.of(service):
            for sample in window.after.pages[process].get(f"{prefix}model_state", ()):
                if sample.value and sample.labels["model"] not in there:
                    coming.setdefault((sample.labels["model"], sample.labels["state"]), []).append(process.name)
        for (version, state), names in coming.items():
            told = Evidence("refused: nobody has it", refused / window.seconds, "/s", 0)
            yield Seen(
                {"version": version, "state": state},
                (told, Evidence("processes that are to have it", len(names), "")),
                tuple(names),
            )


def _host(_: Window, pools: list[Pool]) -> Iterator[Seen]:
    for pool, worker in _each(pools):
        if worker.running.least + worker.inside.least and worker.busy < limit.IDLE and worker.cpu >= limit.CORE:
            yield Seen(
                _whom(pool, worker),
                (
                    Evidence("processor", worker.cpu, "cores", limit.CORE),
                    Evidence("accelerator in steps", worker.busy * 100, "%", limit.IDLE * 100),
                    Evidence("sequences running", worker.running.least, ""),
                ),
                (worker.process.name,),
            )


def _skewed(_: Window, pools: list[Pool]) -> Iterator[Seen]:
    """One that is full beside one, of the same versions, that has room, while callers wait."""
    for pool in _pressed(pools):
        for full in pool.workers:
            spare = [
                each for each in pool.workers if each.versions == full.versions and each.filled.most <= limit.SPARE
            ]
            if spare and full.filled.least >= limit.KV:
                emptiest = min(spare, key=lambda each: each.filled.most)
                yield Seen(
                    _whom(pool, full),
                    (
                        *_queue(pool),
                        Evidence("of its places or blocks, taken", full.filled.least * 100, "%", limit.KV * 100),
                        Evidence(f"of {emptiest.process.name}'s", emptiest.filled.most * 100, "%", limit.SPARE * 100),
                    ),
                )


def _one_tenant(_: Window, pools: list[Pool]) -> Iterator[Seen]:
    for pool in _pressed(pools):
        waits = [sum(queued[at] for queued, _ in pool.tenants.values()) for at in (0, 1)]
        running = sum(held.after for _, held in pool.tenants.values())
        for tenant, (queued, held) in pool.tenants.items():
            share = min(mine / all_ if all_ else 0.0 for mine, all_ in zip(queued, waits, strict=True))
            others = 1.0 - held.after / running if running else 0.0
            if tenant != limit.OTHERS and share >= limit.TENANT and others >= limit.SHARED:
                yield Seen(
                    {"tenant": tenant, "pool": pool.name},
                    (
                        *_queue(pool),
                        Evidence("of what waits, the tenant's", share * 100, "%", limit.TENANT * 100),
                        Evidence("of what runs, others'", others * 100, "%", limit.SHARED * 100),
                    ),
                )


def _kv(_: Window, pools: list[Pool]) -> Iterator[Seen]:
    for pool in _pressed(pools):
        full = [each for each in pool.workers if _out_of_blocks(each)]
        if full:
            yield Seen(
                {"pool": pool.name, "version": ", ".join(pool.versions)},
                (
                    *_queue(pool),
                    Evidence("workers without blocks", len(full), f"of {len(pool.workers)}", 0),
                    Evidence("blocks granted", _mean(each.granted.least for each in full) * 100, "%", limit.KV * 100),
                    Evidence("blocks in use", _mean(each.used.least for each in full) * 100, "%", limit.KV_USED * 100),
                    Evidence("preempted for want of blocks", sum(each.preempted for each in full), "/s"),
                    Evidence("places left for sequences", sum(each.places.least for each in full), ""),
                ),
                tuple(each.process.name for each in full),
            )


def _out_of_blocks(worker: Worker) -> bool:
    # With every place taken it is these that bind, and memory only fills with them.
    granted = worker.places.least > 0 and worker.granted.least >= limit.KV
    inside = worker.inside.least > 0 and worker.used.least >= limit.KV_USED
    return granted or inside or worker.preempted >= limit.PREEMPTIONS


def _steps(prompts: bool) -> Callable[[Window, list[Pool]], Iterable[Seen]]:
    def look(_: Window, pools: list[Pool]) -> Iterator[Seen]:
        for pool in _pressed(pools):
            busy = [each for each in pool.workers if each.busy >= limit.BUSY]
            share = _mean(each.prefill for each in busy) if busy else 0.0
            if busy and (share >= limit.PREFILL) is prompts:
                yield Seen(
                    {"pool": pool.name, "version": ", ".join(pool.versions)},
                    (
                        *_queue(pool),
                        Evidence("workers without a pause", len(busy), f"of {len(pool.workers)}"),
                        Evidence(
                            "of their steps, on prompts" if prompts else "of their steps, on decoding",
                            (share if prompts else 1.0 - share) * 100,
                            "%",
                            limit.PREFILL * 100,
                        ),
                        Evidence("places left for sequences", sum(each.places.least for each in busy), ""),
                    ),
                    tuple(each.process.name for each in busy),
                )

    return look


def _unread(window: Window, _: list[Pool]) -> Iterator[Seen]:
    for gateway in window.of("gateway"):
        unread = window.span(gateway, "weir_gateway_unread_characters").least
        active = window.span(gateway, "weir_gateway_active_generations").most
        ended = window.gained(gateway, "weir_gateway_slow_readers_total")
        allowed = limit.UNREAD + active * limit.UNREAD_EACH
        if unread >= allowed or ended:
            told = Evidence("output that readers have not taken", unread, "characters", allowed)
            yield Seen(_who(gateway), (told, Evidence("streams ended for it", ended, "", 0)))
    for worker in window.of("worker"):
        if ended := window.gained(worker, "weir_worker_slow_readers_total"):
            yield Seen(_who(worker), (Evidence("gateway streams ended: they did not read", ended, "", 0),))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _queue(pool: Pool) -> tuple[Evidence, ...]:
    return (
        Evidence("requests waiting", pool.depth.after, "", 0),
        Evidence("mean wait", pool.wait, "s", limit.QUEUE_WAIT),
        Evidence("refused for want of room", pool.refused * 100, "%", limit.REFUSED_SHARE * 100),
    )


def _pressed(pools: list[Pool]) -> Iterator[Pool]:
    return (pool for pool in pools if pool.pressed)


def _each(pools: list[Pool]) -> Iterator[tuple[Pool, Worker]]:
    return ((pool, worker) for pool in pools for worker in pool.workers)


def _who(process: Process) -> dict[str, str]:
    return {"process": process.name, **({"zone": process.zone} if process.zone else {})}


def _whom(pool: Pool, worker: Worker) -> dict[str, str]:
    return {"pool": pool.name, "worker": worker.process.name, "version": ", ".join(worker.versions)}


RULES = (
    Rule(
        Stage.SILENT,
        _silent,
        (
            _setting("see whether it hangs or is gone: `weir status`, `weir logs PROCESS`"),
            _setting(
                "start it again: `weir restart PROCESS` (the supervisor does, of one that hangs for half a minute)"
            ),
            _process("one more of its kind: set replicas, so that none is alone"),
        ),
    ),
    Rule(
        Stage.EDGE_CONNECTIONS,
        _connections,
        (
            _setting("raise the edge's max_connections (services/controlplane), if its heap allows"),
            _setting("ask clients to reuse connections: HTTP/2, or one pool per process"),
            _process("one more Envoy"),
        ),
    ),
    Rule(
        Stage.GATEWAY_CPU,
        _core("gateway"),
        (
            _setting("merge more tokens into one write: the gateway's flush interval"),
            _process("one more gateway: set replicas"),
        ),
    ),
    Rule(
        Stage.LIMITER,
        _core("ratelimit"),
        (
            _setting("let tenants' leases last longer, so that gateways ask less often"),
            _process("one more limiter: tenants are spread over all of them"),
        ),
    ),
    Rule(
        Stage.SAFETY,
        _core("safety"),
        (
            _setting("see what the costliest policies match: `weir safety list`"),
            _process("one more safety service"),
        ),
    ),
    Rule(
        Stage.DECISION_CPU,
        _core("admission", "router", "edge-auth", "predictor"),
        (_process("one more of this service"),),
    ),
    Rule(
        Stage.COLD_MODEL,
        _cold,
        (
            _setting("wait for the load, or see why it fails: `weir workers`"),
            _setting("keep it resident: want it in the pool before callers do (a rollout does)"),
            _WORKER,
        ),
    ),
    Rule(
        Stage.HOST_CPU,
        _host,
        (
            _setting("larger steps: raise max_step_tokens and max_running, so that the host works less per token"),
            _process("faster or less shared cores for the worker's process"),
        ),
    ),
    Rule(
        Stage.PLACEMENT,
        _skewed,
        (
            _setting("weigh cached prefixes less in placement (services/admission), or spread them over more workers"),
            _setting("look whether the idle one is ejected, or its zone not allowed: `weir workers`"),
        ),
    ),
    Rule(
        Stage.TENANT,
        _one_tenant,
        (
            _setting("see what it asks for: `weir tenants explain TENANT`"),
            _setting("limit it, or serve it only what is idle: `weir set limits 'TENANT/*' …`"),
            _WORKER,
        ),
    ),
    Rule(
        Stage.KV,
        _kv,
        (
            _setting("lower max_tokens, or promise less of it: admission's output_reserve"),
            _setting("bound the tenants' share of memory: a plan's kv_share"),
            _setting("spill to host memory and disk, where the engine can"),
            _WORKER,
        ),
    ),
    Rule(
        Stage.PREFILL,
        _steps(prompts=True),
        (
            _setting("keep prompts' beginnings alike, so that the prefix cache computes them once"),
            _setting("bound prompts: a plan's context limit"),
            _WORKER,
        ),
    ),
    Rule(
        Stage.DECODE,
        _steps(prompts=False),
        (
            _setting("raise max_running, if KV memory is free: more sequences share a step"),
            _setting("answer in fewer tokens or by a smaller model: a plan's ladder"),
            _WORKER,
        ),
    ),
    Rule(
        Stage.SLOW_READER,
        _unread,
        (
            _setting("see which streams: the audit log's SLOW_READER (`weir tenants explain TENANT`)"),
            _setting("tell the caller to read, or to resume from its cursor"),
        ),
    ),
)
"""Every stage, in the order of precedence."""


def findings(window: Window, pools: list[Pool]) -> Iterator[Finding]:
    """What every rule sees, in the order of the rules."""
    by_name = {each.name: each for each in window.after.pages}
    for rule in RULES:
        for seen in rule.look(window, pools):
            process = by_name.get(seen.whom.get("process", seen.whom.get("worker", "")))
            since = max(window.before.at, window.started(process) if process else 0.0)
            remedies = tuple(_addressed(each, seen.whom) for each in rule.remedies)
            yield Finding(rule.stage, seen.whom, seen.evidence, since, remedies, seen.workers)


def _addressed(remedy: Remedy, whom: Mapping[str, str]) -> Remedy:
    """With the name of whom it is about in its commands."""
    what = remedy.what
    for key in ("process", "tenant"):
        what = what.replace(key.upper(), whom.get(key, key.upper()))
    return remedy._replace(what=what)
