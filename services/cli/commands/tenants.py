"""`weir tenants explain`. Tenants themselves: `weir get tenants`."""

from __future__ import annotations

import time
from typing import Annotated, Any

from services.cli import calls
from services.cli.app import Argument, Option, Output, warn
from services.cli.config import NoMeshError
from services.cli.output import failed, print_json

_KINDS = (
    *("models", "aliases", "plans", "tenants", "keys", "limits", "budgets"),
    *("slos", "prices", "levels", "spend"),
)


def explain(
    tenant: Annotated[str, Argument("Its id.")],
    records: Annotated[int, Option(least=1, most=1000, help="How many of its last requests to read.")] = 1000,
    output: Output = "table",
) -> None:
    """Say what a tenant is given, how its last requests fared, and what speaks against it."""
    from services.cli.explain import show
    from services.cli.explain import tenant as explaining

    snapshot = calls.snapshot(*_KINDS)
    if tenant not in snapshot.tenants:
        raise failed(f"no tenant is called {tenant!r}; `weir get tenants` lists them")
    found = _records(tenant, records)
    whole = found is not None and len(found) < records
    told = explaining.explain(explaining.Facts(snapshot, found, time.time(), whole), tenant)
    if output == "json":
        print_json(told)
    else:
        show.show(told, wide=output == "wide")


def _records(tenant: str, limit: int) -> list[Any] | None:
    """Its newest records in the audit log; None, and a word on standard error, when that cannot be asked."""
    from libs.errors import WeirError

    try:
        answer = calls.ask("audit", "Tail", tenant=tenant, limit=limit)
    except (WeirError, NoMeshError) as error:
        warn(f"the audit log cannot be asked: {error}")
        return None
    return [stored.record for stored in answer.records]
