"""`/v1/status`: how the models of a tenant stand, for its own admins. Pure.

What is told of objectives is of everybody's requests of a route and tier, as shares, never as counts: how much others
ask for is nobody's business. Budgets are the tenant's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from weir.registry.v1 import registry_pb2 as pb

from libs.clock.stamps import unix
from libs.deadlines import to_seconds
from libs.quota.dates import Zone
from libs.registry import RegistrySnapshot
from libs.rollouts import phase_of
from libs.routing import ListedModel

_json = msgspec.json.Encoder().encode
MOST_MODELS = 200
"""Of a page; those beyond are left out, and `has_more` says so."""
RECENT = 86_400.0
"""Seconds for which a rollback is news."""
_SECONDS = ("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99")
_SHARES = ("availability", "stream_completion")
_NANO = 1_000_000_000
_SEVERITIES = {"page": "critical", "ticket": "minor"}
"""Of alerts, in the words of public status pages."""
RouteTier = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known when a tenant asks."""

    tenant: str
    now: float
    """Unix seconds."""
    models: Sequence[ListedModel]
    """What the tenant may ask for."""
    snapshot: RegistrySnapshot
    burned: Mapping[RouteTier, pb.ErrorBudget] | None
    """How objectives are met; None: nobody could be asked."""
    spent: pb.Spend | None
    """What the tenant has spent; None: nobody could be asked."""
    broken: Collection[tuple[str, str]] = ()
    """(version, zone) of breakers that are not closed."""


def status_body(facts: Facts) -> bytes:
    """The body of the answer."""
    shown = facts.models[:MOST_MODELS]
    incidents = [*_burning(facts, shown), *_broken(facts, shown), *_rolled_back(facts, shown)]
    unknown = [name for name, known in (("objectives", facts.burned), ("budgets", facts.spent)) if known is None]
    return _json(
        {
            "object": "status",
            "created": int(facts.now),
            "status": _worst(each["severity"] for each in incidents),
            "models": [_model(facts, each) for each in shown],
            "has_more": len(facts.models) > len(shown),
            "budgets": list(_budgets(facts)),
            "incidents": incidents,
            "unknown": unknown,
        }
    )


def _model(facts: Facts, model: ListedModel) -> dict[str, Any]:
    return {
        "object": "status.model",
        "id": model.id,
        "version": model.model_version,
        "tier": model.tier,
        "objectives": list(_objectives(facts, model)),
    }


def _objectives(facts: Facts, model: ListedModel) -> Iterator[dict[str, Any]]:
    slo = _slo(facts.snapshot, _of(model))
    if slo is None:
        return
    stands = _standing(facts, _of(model))
    for name in (*_SECONDS, *_SHARES):
        if (target := _target(slo, name)) is None:
            continue
        found = stands.get(name)
        events = found.good + found.bad if found else 0
        yield {
            "object": "status.objective",
            "objective": name,
            "target": target,
            "unit": "seconds" if name in _SECONDS else "share",
            "attainment": round(found.good / events, 6) if found and events else None,
            "budget_used": round(found.consumed, 6) if found and events else None,
            "burn": {window: round(rate, 3) for window, rate in sorted(found.burn_rates.items())} if found else {},
        }


def _budgets(facts: Facts) -> Iterator[dict[str, Any]]:
    budget = facts.snapshot.budgets.get(facts.tenant)
    if budget is None:
        return
    tenant = facts.snapshot.tenants.get(facts.tenant)
    zone, wall = Zone(tenant.time_zone if tenant is not None else ""), int(facts.now) * _NANO
    soft = budget.enforcement == pb.BUDGET_ENFORCEMENT_SOFT
    for period, bound, current, key, spent in (
        ("day", budget.daily_microusd, zone.day(wall), "day", "day_microusd"),
        ("month", budget.monthly_microusd, zone.month(wall), "month", "month_microusd"),
    ):
        if not bound:
            continue
        # What was written on an earlier day, or in an earlier month, is not spent of this one.
        present = facts.spent is not None and getattr(facts.spent, key) == current.key
        amount = None if facts.spent is None else getattr(facts.spent, spent) if present else 0
        yield {
            "object": "status.budget",
            "period": period,
            "limit": {"value": bound / 1e6, "currency": "usd"},
            "spent": None if amount is None else {"value": amount / 1e6, "currency": "usd"},
            "resets_at": current.ends // _NANO,
            "enforcement": "soft" if soft else "hard",
        }


def _burning(facts: Facts, models: Iterable[ListedModel]) -> Iterator[dict[str, Any]]:
    """An objective that is missed so often that an alert fires."""
    for of in dict.fromkeys(map(_of, models)):
        for name, found in sorted(_standing(facts, of).items()):
            if found.alert and _slo(facts.snapshot, of) is not None:
                told = [each.id for each in models if _of(each) == of]
                severity = _SEVERITIES.get(found.alert, "minor")
                message = f"{name} of {of[0]}/{of[1]} is missed more often than its objective allows"
                yield _incident("objective_burning", severity, told, None, message)


def _broken(facts: Facts, models: Iterable[ListedModel]) -> Iterator[dict[str, Any]]:
    for version, zone in sorted(facts.broken):
        if told := [each.id for each in models if each.model_version == version]:
            message = f"{version} fails in {zone} and is served from elsewhere where it can be"
            yield _incident("breaker_open", "major", told, None, message)


def _rolled_back(facts: Facts, models: Iterable[ListedModel]) -> Iterator[dict[str, Any]]:
    for model in models:
        rollout = facts.snapshot.rollouts.get(model.id)
        if rollout is None or phase_of(rollout) != pb.ROLLOUT_PHASE_ROLLED_BACK:
            continue
        ended = unix(rollout.state.ended_at)
        if facts.now - ended <= RECENT:
            yield _incident("rolled_back", "minor", [model.id], int(ended), "a new version was taken back")


def _incident(kind: str, severity: str, models: list[str], since: int | None, message: str) -> dict[str, Any]:
    return {
        "object": "status.incident",
        "type": kind,
        "severity": severity,
        "models": models,
        "since": since,
        "message": message,
    }


def _worst(severities: Iterable[str]) -> str:
    """ "operational", or the worst of the incidents' severities."""
    return max(severities, key=("minor", "major", "critical").index, default="operational")


def _of(model: ListedModel) -> RouteTier:
    """What predicts has no context."""
    return "generate" if model.context_length else "predict", model.tier


def _slo(snapshot: RegistrySnapshot, of: RouteTier) -> pb.Slo | None:
    route, _ = of
    return snapshot.slos.get(of) or snapshot.slos.get((route, "*"))


def _standing(facts: Facts, of: RouteTier) -> dict[str, pb.ObjectiveBudget]:
    found = (facts.burned or {}).get(of)
    return {each.objective: each for each in found.objectives} if found is not None else {}


def _target(slo: pb.Slo, name: str) -> float | None:
    if name in _SHARES:
        return getattr(slo, name) or None
    return to_seconds(getattr(slo, name)) if slo.HasField(name) else None  # type: ignore[arg-type]
