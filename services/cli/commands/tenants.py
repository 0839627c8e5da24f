"""`weir tenants explain`. Tenants themselves: `weir get tenants`."""

from __future__ import annotations

from typing import Annotated

from services.cli.app import Argument, Option, Output
from services.cli.output import failed, print_json


def explain(
    tenant: Annotated[str, Argument("Its id.")],
    records: Annotated[int, Option(least=1, most=1000, help="How many of its last requests to read.")] = 1000,
    output: Output = "table",
) -> None:
    """Say what a tenant is given, how its last requests fared, and what speaks against it."""
    from services.cli.explain import gather, show

    told = gather.tell(tenant, records=records)
    if told is None:
        raise failed(f"no tenant is called {tenant!r}; `weir get tenants` lists them")
    if output == "json":
        print_json(told)
    else:
        show.show(told, wide=output == "wide")
