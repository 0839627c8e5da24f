"""What an operator needs whose tenant complains: what it is given, how it fares, and what speaks against it. Pure.

A tenant's own requests come from the audit log, which records every request that reached a gateway, served or not.
Those that the edge refuses before that are there, too, counted by reason: a line a minute. Whoever shows no good key
is no tenant's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog.security import Kind
from libs.clock.stamps import unix
from libs.deadlines import to_seconds
from libs.quota import PriceBook
from libs.quota.dates import Zone
from libs.registry import RegistrySnapshot, kv_share_of, plan_name, plan_of, price_book, slo_of, weight_of
from libs.resources.quantities import show_seconds, show_usd

MINUTE = 60.0
DAY = 86400.0
_NEAR = 0.8
"""Share of a limit from which it is worth a word."""
_REFUSED = ("rejected", "evicted")
_AT_THE_EDGE = (Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.RATE_LIMITED)
_ROUTES = {"embed": "embed"}
"""Operation → route; all others generate."""
_ADVICE = {
    "QUOTA_REQUESTS": "its requests per minute are used up: `weir set limits '{tenant}/*' requests_per_minute=…`",
    "QUOTA_ROWS": "its rows of predictions per minute are used up: `weir set limits '{tenant}/*' rows_per_minute=…`",
    "QUOTA_TOKENS": "its tokens per minute are used up: `weir set limits '{tenant}/*' tokens_per_minute=…`",
    "QUOTA_CONCURRENCY": "it has too many streams at once: `weir set limits '{tenant}/*' concurrency=…`",
    "QUOTA_SPEND": "its spend cap is reached: `weir set limits '{tenant}/*' spend_microusd=…`",
    "CONTEXT_LENGTH_EXCEEDED": "prompt and output exceed its context limit or the model's",
    "MODEL_NOT_FOUND": "it asks for models that do not exist: `weir get models`",
    "REJECTED_QUEUE_FULL": "its queue is full: the pool cannot keep up; see `weir get levels`, `weir workers`",
    "REJECTED_DEADLINE": "the pool could not have answered in time; see `weir get levels`, `weir workers`",
    "REJECTED_OVERLOAD": "it asks for more than its share of an overloaded pool; see `weir get levels`",
    "REJECTED_NO_CAPACITY": "no worker can take such requests: see `weir workers`",
    "NO_WORKERS": "no worker was up that has the model: see `weir workers`, `weir status`",
    "EVICTED_TTL": "it waited longer than its queue's time to live: the pool cannot keep up",
    "EVICTED_DEADLINE": "its deadline passed in the queue: the pool cannot keep up, or its deadlines are short",
    "EVICTED_SHED": "shed for more urgent work; a plan with a higher class or weight is shed later",
    "DEPENDENCY_UNAVAILABLE": "a service of the mesh is away: see `weir status`",
    "WORKER_LOST": "workers died under its requests: see `weir workers`, `weir logs worker`",
    "ENGINE_ERROR": "engines failed on its requests: see `weir logs worker`",
    "SCOPE_MISSING": "its key may not do this: `weir get keys`",
    "KEY_EXPIRED": "its key's time has passed: `weir keys create {tenant}`",
    "SLOW_READER": "its client does not read its streams",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the services said."""

    snapshot: RegistrySnapshot
    records: Sequence[audit_pb2.Record] | None
    """The tenant's newest, oldest first; None when the audit log cannot be asked."""
    now: float
    """Unix seconds."""
    whole: bool = False
    """`records` are all that there are, not only the newest."""


def explain(facts: Facts, tenant: str) -> dict[str, Any]:
    """Everything about a tenant that the registry knows, as JSON values, and `findings`: what to look at, in words."""
    known = facts.snapshot.tenants[tenant]
    requests = [record for record in facts.records or () if record.WhichOneof("event") == "request"]
    limited = [limits for key, limits in sorted(facts.snapshot.limits.items()) if key[0] == tenant]
    told: dict[str, Any] = {
        "tenant": tenant,
        "display_name": known.display_name,
        "plan": _plan(facts.snapshot, tenant),
        "weight": weight_of(facts.snapshot, tenant),
        "keys": _keys(facts, tenant),
        "limits": [_limits(facts, requests, limits) for limits in limited],
        "budget": budget_of(facts.snapshot, known, facts.now),
        "objectives": _objectives(facts.snapshot, requests),
        "levels": _levels(facts.snapshot, known),
        "recent": None if facts.records is None else _recent(requests),
        "edge": None if facts.records is None else _edge(facts.records),
    }
    refusals = (*_at_the_edge(told), *_refusals(told))
    told["findings"] = [*_access(told, known), *_overload(told), *refusals, *_near(told), *_slow(told)]
    return told


def _plan(snapshot: RegistrySnapshot, tenant: str) -> dict[str, Any]:
    plan = plan_of(snapshot, tenant)
    return {
        "id": plan.id,
        "defined": plan.id in snapshot.plans,
        "kind": "paid" if snapshot.tenants[tenant].plan == pb.PLAN_PAID else "free",
        "over_quota": "serve-idle" if plan.over_quota == pb.OVER_QUOTA_SERVE_IDLE else "refuse",
        "kv_share": kv_share_of(plan),
        "ladder": [step.WhichOneof("step") for step in plan.ladder],
    }


def _keys(facts: Facts, tenant: str) -> dict[str, int]:
    counts = {"live": 0, "expired": 0, "revoked": 0}
    for key in facts.snapshot.keys.values():
        if key.tenant == tenant:
            expired = key.HasField("expires_at") and key.expires_at.seconds <= facts.now
            counts["revoked" if key.HasField("revoked_at") else "expired" if expired else "live"] += 1
    return counts


def _limits(facts: Facts, requests: Sequence[audit_pb2.Record], limits: pb.Limits) -> dict[str, Any]:
    """A limit and what the audit log shows to be used of it; None where it cannot show it."""
    fields = ("requests_per_minute", "tokens_per_minute", "concurrency", "max_context", "max_output", "spend_microusd")
    window = to_seconds(limits.spend_window) if limits.HasField("spend_window") else DAY
    told = {"model": limits.model, **{name: getattr(limits, name) for name in fields}, "spend_window": window}
    told |= {"used_requests": None, "used_tokens": None, "spent_microusd": None, "spent_is_all": None}
    if facts.records is None:
        return told
    mine = [r for r in requests if limits.model in ("*", r.request.model, r.request.model_version)]
    minute = [r.request for r in mine if unix(r.time) > facts.now - MINUTE]
    told["used_requests"] = sum(event.outcome not in _REFUSED for event in minute)
    told["used_tokens"] = sum(event.prompt_tokens + event.completion_tokens for event in minute)
    if limits.spend_microusd:
        spent = [r.request for r in mine if unix(r.time) > facts.now - window]
        book = price_book(facts.snapshot)
        told["spent_microusd"] = sum(_cost(book, event) for event in spent)
        # The log is read from its end: a window that begins before the oldest record read is not seen whole.
        told["spent_is_all"] = facts.whole or (bool(requests) and unix(requests[0].time) <= facts.now - window)
        told["unpriced"] = [name for name in sorted(facts.snapshot.model_versions) if book.find(name) is None]
    return told


def budget_of(snapshot: RegistrySnapshot, tenant: pb.Tenant, now: float) -> list[dict[str, Any]]:
    """The calendar periods that its budget bounds, with what the limiters wrote last of each."""
    budget = snapshot.budgets.get(tenant.id, pb.Budget())
    spend = snapshot.spend.get(tenant.id, pb.Spend())
    zone, wall = Zone(tenant.time_zone), int(now * 1e9)
    soft = budget.enforcement == pb.BUDGET_ENFORCEMENT_SOFT
    return [
        {"field": field, "period": key, "spent_microusd": spent if of == key else 0, "microusd": bound, "soft": soft}
        for field, key, of, spent, bound in (
            ("monthly_microusd", zone.month(wall).key, spend.month, spend.month_microusd, budget.monthly_microusd),
            ("daily_microusd", zone.day(wall).key, spend.day, spend.day_microusd, budget.daily_microusd),
        )
        if bound
    ]


def _objectives(snapshot: RegistrySnapshot, requests: Sequence[audit_pb2.Record]) -> list[dict[str, Any]]:
    """Each declared objective that holds for a tier, beside how this tenant's last requests of it fared."""
    tiers = sorted({version.tier for version in snapshot.model_versions.values()})
    told = []
    for route in ("generate", "embed"):
        for tier in tiers:
            slo = slo_of(snapshot, route, tier)
            if slo is None:
                continue
            events = [r.request for r in requests if _ROUTES.get(r.request.operation, "generate") == route]
            firsts = [
                to_seconds(event.time_to_first_token)
                for event in events
                if _tier(snapshot, event) == tier and event.time_to_first_token.ByteSize()
            ]
            told.append(
                {
                    "route": route,
                    "tier": tier,
                    "ttft_p95": to_seconds(slo.ttft_p95) if slo.HasField("ttft_p95") else None,
                    "itl_p95": to_seconds(slo.itl_p95) if slo.HasField("itl_p95") else None,
                    "availability": slo.availability or None,
                    "measured_requests": len(firsts),
                    "measured_ttft_p95": _p95(firsts),
                }
            )
    return told


def _levels(snapshot: RegistrySnapshot, tenant: pb.Tenant) -> list[dict[str, Any]]:
    """Pools that are overloaded now, as far as this tenant is concerned."""
    mine = "paid" if tenant.plan == pb.PLAN_PAID else "free"
    told = []
    for pool in sorted(snapshot.levels):
        level = snapshot.levels[pool]
        waits = next((each for each in level.classes if each.queue_class == mine), None)
        shed = next((each for each in level.tenants if each.tenant == tenant.id), None)
        told.append(
            {
                "pool": pool,
                "queue_class": mine,
                "wait": to_seconds(waits.wait) if waits else 0.0,
                "queued": waits.queued if waits else 0,
                "shed": shed.shed if shed else 0.0,
                "retry_after": to_seconds(shed.retry_after) if shed else 0.0,
            }
        )
    return told


def _recent(requests: Sequence[audit_pb2.Record]) -> dict[str, Any]:
    refusals: dict[str, dict[str, Any]] = {}
    for record in requests:
        if record.request.reason:
            entry = refusals.setdefault(record.request.reason, {"count": 0, "last": 0.0})
            entry["count"] += 1
            entry["last"] = unix(record.time)
    ordered = sorted(refusals.items(), key=lambda item: -item[1]["count"])
    return {
        "requests": len(requests),
        "since": unix(requests[0].time) if requests else None,
        "outcomes": dict(Counter(record.request.outcome for record in requests).most_common()),
        "reasons": dict(ordered),
        "degraded": dict(Counter(flag for record in requests for flag in record.request.degraded).most_common()),
    }


def _edge(records: Sequence[audit_pb2.Record]) -> dict[str, dict[str, float]]:
    """What the edge refused of its requests, by reason, in capitals as everywhere; the most frequent first."""
    refusals: dict[str, dict[str, float]] = {}
    for record in records:
        event = record.security
        if event.kind in _AT_THE_EDGE:
            since = unix(event.since)
            entry = refusals.setdefault(event.reason.upper(), {"count": 0, "since": since, "last": 0.0})
            entry["count"] += event.count
            entry["since"], entry["last"] = min(entry["since"], since), max(entry["last"], unix(record.time))
    return dict(sorted(refusals.items(), key=lambda item: -item[1]["count"]))


def _access(told: Mapping[str, Any], tenant: pb.Tenant) -> list[str]:
    found, keys = [], told["keys"]
    if not keys["live"] and not tenant.workloads and not tenant.jwt_issuer:
        found.append(
            f"nobody can act as it: no live key ({keys['revoked']} revoked, {keys['expired']} expired), no workload, "
            "no issuer of tokens"
        )
    if tenant.plan_policy and not told["plan"]["defined"]:
        found.append(f"its plan {plan_name(tenant)!r} is not defined: weight 1, no degradation; see `weir get plans`")
    return found


def _overload(told: Mapping[str, Any]) -> list[str]:
    found = []
    for level in told["levels"]:
        waits = f"the next request of class {level['queue_class']} waits {show_seconds(round(level['wait'], 3))}"
        waits += f" behind {level['queued']}"
        if level["shed"]:
            found.append(
                f"pool {level['pool']} is overloaded: the edge refuses {level['shed']:.0%} of its requests "
                f"(come back after {show_seconds(round(level['retry_after'], 3))}); {waits}"
            )
        elif level["queued"]:
            found.append(f"pool {level['pool']} is overloaded: {waits}")
    return found


def _at_the_edge(told: Mapping[str, Any]) -> list[str]:
    found = []
    for reason, entry in (told["edge"] or {}).items():
        since, last = (datetime.fromtimestamp(entry[name], UTC) for name in ("since", "last"))
        upto = f"{last:%H:%M:%S}" if last.date() == since.date() else f"{last:%Y-%m-%d %H:%M:%S}"
        when = f"{since:%Y-%m-%d %H:%M:%S} to {upto} UTC"
        found.append(f"the edge refused {entry['count']} of its requests, {when}: {reason}{_advice(reason, told)}")
    return found


def _advice(reason: str, told: Mapping[str, Any]) -> str:
    known = _ADVICE.get(reason, "").format(tenant=told["tenant"])
    return f", {known}" if known else ""


def _refusals(told: Mapping[str, Any]) -> list[str]:
    if told["recent"] is None:
        return ["the audit log cannot be asked: its requests are not known"]
    reasons, degraded = told["recent"]["reasons"], told["recent"]["degraded"]
    its = f"of its last {told['recent']['requests']} requests"
    found = [f"{entry['count']} {its}: {reason}{_advice(reason, told)}" for reason, entry in reasons.items()]
    return found + [f"{count} {its} were served degraded: {flag}" for flag, count in degraded.items()]


def _near(told: Mapping[str, Any]) -> list[str]:
    found = []
    for each in told["budget"]:
        spent, bound = each["spent_microusd"], each["microusd"]
        if spent >= _NEAR * bound:
            over = "" if spent < bound else ", and is served all the same" if each["soft"] else ", and is refused"
            mend = f"`weir set budgets {told['tenant']} {each['field']}=…`"
            found.append(f"it spent {show_usd(spent)} of its {show_usd(bound)} for {each['period']}{over}: {mend}")
    for limits in told["limits"]:
        for used, limit, what in (
            ("used_requests", "requests_per_minute", "requests"),
            ("used_tokens", "tokens_per_minute", "tokens"),
        ):
            if limits[limit] and (limits[used] or 0) >= _NEAR * limits[limit]:
                found.append(f"it used {limits[used]} of {limits[limit]} {what} per minute ({limits['model']})")
        cap = limits["spend_microusd"]
        if cap and (limits["spent_microusd"] or 0) >= _NEAR * cap:
            spent = f"it spent {'' if limits['spent_is_all'] else 'at least '}{show_usd(limits['spent_microusd'])}"
            found.append(f"{spent} of {show_usd(cap)} per {show_seconds(limits['spend_window'])} ({limits['model']})")
        if limits.get("unpriced"):
            names = ", ".join(limits["unpriced"])
            found.append(f"its spend cap does not count {names}: no price; see `weir get prices`")
    return found


def _slow(told: Mapping[str, Any]) -> list[str]:
    return [
        f"its first tokens of tier {slo['tier']} take {show_seconds(round(slo['measured_ttft_p95'], 3))} (p95 of "
        f"{slo['measured_requests']}), the objective is {show_seconds(slo['ttft_p95'])}"
        for slo in told["objectives"]
        if slo["ttft_p95"] and (slo["measured_ttft_p95"] or 0.0) > slo["ttft_p95"]
    ]


def _cost(book: PriceBook, event: audit_pb2.RequestEvent) -> int:
    tokens = event.prompt_tokens + event.completion_tokens
    return book.of(event.model_version, event.model).cost(tokens, event.prompt_tokens, event.cached_prompt_tokens)


def _tier(snapshot: RegistrySnapshot, event: audit_pb2.RequestEvent) -> str:
    version = snapshot.model_versions.get(event.model_version)
    return version.tier if version else ""


def _p95(values: Sequence[float]) -> float | None:
    """The nearest-rank 95th percentile."""
    return sorted(values)[-(-95 * len(values) // 100) - 1] if values else None
