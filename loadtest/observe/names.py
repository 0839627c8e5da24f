"""What a stranger's names do to the metrics: as many tenants and models as somebody likes to make up."""

from __future__ import annotations

from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2

from libs.outcomes import tenants
from libs.telemetry import accelerators
from services.gateway import metrics

NAMES = 1_000_000


def series_after(names: int = NAMES) -> int:
    """Series of this process after a request by each of so many tenants for a model of its own, a millisecond apart,
    refused or served as requests are: what gateways, predictors and workers count of them."""
    for number in range(names):
        tenant, now = f"tenant-{number}", number / 1000
        refused = bool(number % 2)
        event = audit_pb2.RequestEvent(
            tenant=tenant,
            model=f"made-up-{number}",
            outcome="rejected" if refused else "stop",
            prompt_tokens=0 if refused else 7,
            completion_tokens=0 if refused else 5,
            spend_microusd=0 if refused else 3,
        )
        metrics.outcome("chat", event.outcome, "MODEL_NOT_FOUND" if refused else "").inc()
        tenants.count(event, now)
        accelerators.used(tenant, 0.01, now)
    return sum(len(family.samples) for family in REGISTRY.collect())
