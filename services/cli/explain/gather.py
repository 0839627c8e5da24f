"""Asks the services for what `explain` needs."""

from __future__ import annotations

import time
from typing import Any

from weir.audit.v1 import audit_pb2

from libs.errors import WeirError
from services.cli import calls, scrape
from services.cli.app import warn
from services.cli.config import NoMeshError
from services.cli.explain.tenant import Facts, explain

_KINDS = (
    *("models", "aliases", "plans", "tenants", "keys", "limits", "budgets"),
    *("slos", "prices", "levels", "spend", "endpoints"),
)


def tell(tenant: str, *, records: int) -> dict[str, Any] | None:
    """See `explain`; None when the registry has no such tenant. What else cannot be asked is left out.

    :raises WeirError, NoMeshError: the registry cannot be asked.
    """
    snapshot = calls.snapshot(*_KINDS)
    if tenant not in snapshot.tenants:
        return None
    addresses: dict[str, list[str]] = {}
    for endpoint in snapshot.endpoints.values():
        if endpoint.service in scrape.REFUSALS and endpoint.metrics_address:
            addresses.setdefault(endpoint.service, []).append(endpoint.metrics_address)
    found = _records(tenant, records)
    facts = Facts(
        snapshot=snapshot,
        records=found,
        now=time.time(),
        whole=found is not None and len(found) < records,
        mesh=scrape.refusals(scrape.fetch(addresses)),
    )
    return explain(facts, tenant)


def _records(tenant: str, limit: int) -> list[audit_pb2.Record] | None:
    try:
        answer = calls.ask("audit", "Tail", tenant=tenant, limit=limit)
    except (WeirError, NoMeshError) as error:
        warn(f"the audit log cannot be asked: {error}")
        return None
    return [stored.record for stored in answer.records]
