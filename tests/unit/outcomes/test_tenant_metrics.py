"""What tenants use, as metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2

from libs.outcomes import tenants


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_a_record_counts_once_for_its_tenant_with_all_that_it_used() -> None:
    event = audit_pb2.RequestEvent(
        tenant="metrics-acme", outcome="stop", prompt_tokens=7, completion_tokens=5, spend_microusd=900
    )
    for now in (1.0, 2.0):
        tenants.count(event, now)
    tenants.count(audit_pb2.RequestEvent(tenant="metrics-acme", outcome="refused", rows=0), 3.0)
    tenants.count(audit_pb2.RequestEvent(tenant="metrics-acme", outcome="ok", rows=3, spend_microusd=1), 3.0)
    assert value("weir_tenant_requests_total", tenant="metrics-acme", outcome="stop") == 2
    assert value("weir_tenant_requests_total", tenant="metrics-acme", outcome="refused") == 1
    assert value("weir_tenant_used_total", tenant="metrics-acme", unit="prompt_tokens") == 14
    assert value("weir_tenant_used_total", tenant="metrics-acme", unit="completion_tokens") == 10
    assert value("weir_tenant_used_total", tenant="metrics-acme", unit="rows") == 3
    assert value("weir_tenant_spend_microusd_total", tenant="metrics-acme", plane="generate") == 1800
    assert value("weir_tenant_spend_microusd_total", tenant="metrics-acme", plane="predict") == 1


def test_a_tenant_that_is_shown_no_longer_has_no_series() -> None:
    tenants.count(audit_pb2.RequestEvent(tenant="metrics-gone", outcome="stop", rows=1, spend_microusd=1), 1.0)
    tenants._forget("metrics-gone")
    for family in REGISTRY.collect():
        assert not [sample for sample in family.samples if sample.labels.get("tenant") == "metrics-gone"]
