"""`weir limits`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failures, plain, print_json, print_table
from services.cli.quantities import duration_of, parse_microusd, parse_seconds, seconds_of, show_seconds, show_usd

app = typer.Typer(help="Limits of tenants.", no_args_is_help=True)
DAY = 86400.0
"""Seconds; the window of a spend cap that names none."""


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
    spend: Annotated[str | None, typer.Option(help="Dollars within the window, at the price book's prices.")] = None,
    spend_window: Annotated[str | None, typer.Option(help="Any time of this length, such as 1d; 0 is a day.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
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
        "spend_microusd": None if spend is None else parse_microusd(spend, "--spend"),
        "revision": revision,
    }
    window = None if spend_window is None else parse_seconds(spend_window, "--spend-window")
    with failures():
        present = {each.model: each for each in _limits(tenant)}
        wanted = present.get(model) or registry_pb2.Limits(tenant=tenant, model=model)
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        if window is not None:
            wanted.ClearField("spend_window")
        if window:
            wanted.spend_window.CopyFrom(duration_of(window))
        request = registry_pb2.SetLimitsRequest(limits=wanted, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetLimits", request).limits
    if as_json:
        print_json(plain(stored))
    else:
        _print([stored])
    tell(dry_run)


def _limits(tenant: str) -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListLimits", registry_pb2.ListLimitsRequest(tenant=tenant)).limits)


def show_spend(limits: Any) -> str:
    """A spend cap with its window."""
    if not limits.spend_microusd:
        return "unlimited"
    window = seconds_of(limits.spend_window) if limits.HasField("spend_window") else DAY
    return f"{show_usd(limits.spend_microusd)} per {show_seconds(window)}"


def _print(found: list[Any]) -> None:
    print_table(
        ("TENANT", "MODEL", "RPM", "TPM", "CONCURRENCY", "MAX CONTEXT", "MAX OUTPUT", "SPEND", "REVISION"),
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
                show_spend(limits),
                limits.revision,
            )
            for limits in found
        ),
        empty="no limits",
    )
