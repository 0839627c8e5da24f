"""`weir slos`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failures, plain, print_json, print_table
from services.cli.quantities import duration_of, parse_seconds, seconds_of, show_seconds

app = typer.Typer(help="Declared objectives per route and tier.", invoke_without_command=True)
TIMES = ("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99")
"""Fields that are durations."""
_TIME = "such as 500ms; 0 takes it away."


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """Declared objectives; lists them without a command."""
    if context.invoked_subcommand is None:
        list_slos(as_json)


@app.command("list")
def list_slos(as_json: Json = False) -> None:
    """List objectives."""
    with failures():
        found = _slos()
    if as_json:
        print_json({"slos": [plain(slo) for slo in found]})
    else:
        _print(found)


@app.command("set")
def set_slo(
    route: Annotated[str, typer.Argument(help="generate, embed, predict or batch.")],
    tier: Annotated[str, typer.Argument(help="A tier, or '*' for those without their own.")] = "*",
    ttft_p95: Annotated[str | None, typer.Option(help=f"95 of 100 first tokens come within it, {_TIME}")] = None,
    itl_p95: Annotated[str | None, typer.Option(help=f"95 of 100 gaps between tokens are at most it, {_TIME}")] = None,
    e2e_p95: Annotated[str | None, typer.Option(help=f"95 of 100 answers are complete within it, {_TIME}")] = None,
    e2e_p99: Annotated[str | None, typer.Option(help=f"99 of 100 likewise, {_TIME}")] = None,
    availability: Annotated[float | None, typer.Option(help="Share of requests served, such as 0.999.")] = None,
    stream_completion: Annotated[float | None, typer.Option(help="Share of begun streams that end well.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Declare what is given of the objectives of a route and tier. Admission refuses what would miss --ttft-p95."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    times = {
        name: parse_seconds(text, f"--{name.replace('_', '-')}")
        for name, text in zip(TIMES, (ttft_p95, itl_p95, e2e_p95, e2e_p99), strict=True)
        if text is not None
    }
    numbers = {"availability": availability, "stream_completion": stream_completion, "revision": revision}
    with failures():
        present = {(each.route, each.tier): each for each in _slos()}
        wanted = present.get((route, tier)) or registry_pb2.Slo(route=route, tier=tier)
        for field, value in numbers.items():
            if value is not None:
                setattr(wanted, field, value)
        for field, seconds in times.items():
            wanted.ClearField(field)
            if seconds:
                getattr(wanted, field).CopyFrom(duration_of(seconds))
        request = registry_pb2.SetSloRequest(slo=wanted, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetSlo", request).slo
    if as_json:
        print_json(plain(stored))
    else:
        _print([stored])
    tell(dry_run)


def _slos() -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListSlos", registry_pb2.ListSlosRequest()).slos)


def _print(found: list[Any]) -> None:
    print_table(
        ("ROUTE", "TIER", "TTFT P95", "ITL P95", "E2E P95", "E2E P99", "AVAILABILITY", "STREAM COMPLETION", "REVISION"),
        (
            (
                slo.route,
                slo.tier,
                *(show_seconds(seconds_of(getattr(slo, name))) if slo.HasField(name) else None for name in TIMES),
                f"{slo.availability:.6g}" if slo.availability else None,
                f"{slo.stream_completion:.6g}" if slo.stream_completion else None,
                slo.revision,
            )
            for slo in found
        ),
        empty="no objectives are declared",
    )
