"""`weir limits`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.output import Json, failures, plain, print_json, print_table

app = typer.Typer(help="Limits of tenants.", no_args_is_help=True)


@app.command("list")
def list_limits(tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "", as_json: Json = False) -> None:
    """List limits."""
    with failures():
        found = _limits(tenant)
    if as_json:
        print_json({"limits": [plain(limits) for limits in found]})
    else:
        _print(found)


@app.command("set")
def set_limits(
    tenant: Annotated[str, typer.Argument(help="Whose.")],
    model: Annotated[str, typer.Option(help="An alias or a version; '*' is all of them.")] = "*",
    rpm: Annotated[int | None, typer.Option(min=0, help="Requests per minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=0, help="Tokens per minute, prompt and output.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=0, help="Streams at once.")] = None,
    max_context: Annotated[int | None, typer.Option(min=0, help="Tokens of prompt and output of a request.")] = None,
    max_output: Annotated[int | None, typer.Option(min=0, help="Tokens to generate, per choice.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    as_json: Json = False,
) -> None:
    """Set what is given of a tenant's limits; 0 means unlimited, as does what was never set."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    given = {
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "concurrency": concurrency,
        "max_context": max_context,
        "max_output": max_output,
        "revision": revision,
    }
    with failures():
        present = {each.model: each for each in _limits(tenant)}
        wanted = present.get(model) or registry_pb2.Limits(tenant=tenant, model=model)
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        stored = calls.registry("SetLimits", registry_pb2.SetLimitsRequest(limits=wanted)).limits
    if as_json:
        print_json(plain(stored))
    else:
        _print([stored])


def _limits(tenant: str) -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListLimits", registry_pb2.ListLimitsRequest(tenant=tenant)).limits)


def _print(found: list[Any]) -> None:
    print_table(
        ("TENANT", "MODEL", "RPM", "TPM", "CONCURRENCY", "MAX CONTEXT", "MAX OUTPUT", "REVISION"),
        (
            (
                limits.tenant,
                limits.model,
                *(
                    value or "unlimited"
                    for value in (
                        limits.requests_per_minute,
                        limits.tokens_per_minute,
                        limits.concurrency,
                        limits.max_context,
                        limits.max_output,
                    )
                ),
                limits.revision,
            )
            for limits in found
        ),
        empty="no limits",
    )
