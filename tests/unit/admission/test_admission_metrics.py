"""Who fills a pool, as its metrics tell: by name the few that have the most, the others together."""

from __future__ import annotations

from prometheus_client import REGISTRY

from services.admission.metrics import NAMED_TENANTS, OTHER, PoolMetrics, heaviest
from tests.unit.admission.test_pool import fill, pool, request


def told(name: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["tenant"], sample.labels["state"]): sample.value
        for family in REGISTRY.restricted_registry(["weir_admission_tenant_requests"]).collect()
        for sample in family.samples
        if sample.labels["pool"] == name
    }


def test_who_waits_and_who_runs_is_told_by_tenant_until_it_is_over() -> None:
    target = pool()
    fill(target)
    for number in range(3):
        target.admit(request(f"more-{number}", tenant="globex"), 0.0)
    metrics = PoolMetrics("by-tenant")
    metrics.publish(target, 0.0)
    held = sum(value for (_, state), value in told("by-tenant").items() if state == "held")
    assert told("by-tenant")["globex", "queued"] == 3
    assert held == len(target.fleet.reservations) == 2
    metrics.clear()
    assert told("by-tenant") == {}


def test_thousands_of_tenants_are_a_few_series() -> None:
    counts = {f"tenant-{number:04}": number for number in range(2000)}
    found = heaviest(counts)
    assert len(found) == NAMED_TENANTS + 1
    assert found["tenant-1999"] == 1999
    assert sum(found.values()) == sum(counts.values())


def test_what_is_of_nobody_by_name_is_of_others() -> None:
    assert heaviest({"": 5, "acme": 1}) == {"acme": 1, OTHER: 5}
    assert heaviest({}) == {}
