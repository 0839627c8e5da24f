"""What tenants use, as metrics: requests, tokens, rows and money, of those with most requests by name."""

from __future__ import annotations

from weir.audit.v1 import audit_pb2

from libs.telemetry.counter import FastCounter
from libs.telemetry.named import Named

MOST = 64
"""Tenants that a process shows by name at a time."""
_REQUESTS = FastCounter("weir_tenant_requests_total", "Requests that ended or were refused", ("tenant", "outcome"))
_USED = FastCounter("weir_tenant_used_total", "Tokens and rows that were used", ("tenant", "unit"))
_SPEND = FastCounter(
    "weir_tenant_spend_microusd_total", "What that costs at the price book's prices", ("tenant", "plane")
)


def _forget(tenant: str) -> None:
    for each in (_REQUESTS, _USED, _SPEND):
        each.forget(tenant)


_named = Named(MOST, _forget)


def count(event: audit_pb2.RequestEvent, now: float) -> None:
    """A request is over, as its record says. `now`: seconds of a clock that does not go back."""
    tenant = _named.label(event.tenant, now)
    _REQUESTS.labels(tenant, event.outcome).inc()
    for unit, amount in (
        ("prompt_tokens", event.prompt_tokens),
        ("completion_tokens", event.completion_tokens),
        ("rows", event.rows),
    ):
        if amount:
            _USED.labels(tenant, unit).inc(amount)
    if event.spend_microusd:
        _SPEND.labels(tenant, "predict" if event.rows else "generate").inc(event.spend_microusd)
