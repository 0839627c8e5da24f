"""Asks the services for what `explain` needs."""

from __future__ import annotations

import time
from typing import Any

from weir.audit.v1 import audit_pb2

from libs.errors import WeirError
from services.cli import calls
from services.cli.app import warn
from services.cli.config import NoMeshError
from services.cli.explain.tenant import Facts, explain

_KINDS = (
    *("models", "aliases", "plans", "tenants", "keys", "limits", "budgets"),
    *("slos", "prices", "levels", "spend"),
)


def tell(tenant: str, *, records: int) -> dict[str, Any] | None:
    """See `explain`; None when the registry has no such tenant. What else cannot be asked is left out.

    :raises WeirError, NoMeshError: the registry cannot be asked.
    """
    snapshot = calls.snapshot(*_KINDS)
    if tenant not in snapshot.tenants:
        return None
    found = _records(tenant, records)
    whole = found is not None and len(found) < records
    return explain(Facts(snapshot, found, time.time(), whole), tenant)


def _records(tenant: str, limit: int) -> list[audit_pb2.Record] | None:
    try:
        answer = calls.ask("audit", "Tail", tenant=tenant, limit=limit)
    except (WeirError, NoMeshError) as error:
        warn(f"the audit log cannot be asked: {error}")
        return None
    return [stored.record for stored in answer.records]
