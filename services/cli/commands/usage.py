"""`weir usage`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from libs.resources.forms import plain
from libs.resources.quantities import show_usd
from services.cli import calls
from services.cli.app import CsvOutput, Json, Option, UsageError, say
from services.cli.output import failed, print_found, print_json

_READ_SECONDS = 300.0
"""A comparison reads the whole log."""
_PROJECT_SECONDS = 3_600.0
"""So does that, and projects it: some 10,000 records a second."""
_COLUMNS = ("REQUESTS", "REFUSED", "PROMPT", "CACHED", "OUTPUT", "ROWS", "COST", "UNKNOWN", "AT MOST", "ROWS AT MOST")
_WIDE = ("REFUSED", "CACHED", "UNKNOWN", "AT MOST", "ROWS AT MOST")
_LEAST = ("ROWS", "PROMPT", "OUTPUT", "REQUESTS")


def show(
    by: Annotated[
        str, Option(help="By what, with commas: hour, day, tenant, key, user, model, version, class, operation.")
    ] = "tenant",
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    first: Annotated[str, Option("--from", help="The first day or hour, UTC: 2026-11-01, or 2026-11-01T14.")] = "",
    last: Annotated[str, Option("--to", help="The last day or hour, UTC, inclusive.")] = "",
    model: Annotated[list[str], Option(help="Only of this model or version; repeatable.")] = [],  # noqa: B006
    output: CsvOutput = "table",
) -> None:
    """Show what was used and what it cost, at the prices that were in force.

    Out of the audit log, in which every request stands once: also those that a killed gateway had delivered a part of.
    Of requests whose gateway is gone with its disk nobody knows more than what they can have used at most; they are
    counted apart (-o wide). -o csv is for spreadsheets: all columns, money in micro-dollars.
    """
    names = [name for name in by.split(",") if name]
    asked: dict[str, Any] = {"by": names, "tenant": tenant, "models": model}
    if first:
        asked["since"] = moment("--from", first)[0]
    if last:
        asked["until"] = moment("--to", last)[1]
    answer = calls.ask("records", "Usage", **asked)
    told = [dict(zip(names, row.pop("values"), strict=True)) | row for row in plain(answer, unset=True)["rows"]]
    columns, rows = (*(name.upper() for name in names), *_COLUMNS), map(_cells, answer.rows)
    print_found(output, {"rows": told}, columns, rows, empty="nothing was used", extra=_WIDE, least=_LEAST)


def budgets(
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    output: CsvOutput = "table",
) -> None:
    """Show what tenants have left of their budgets, by the limiters' ledger."""
    from services.cli.explain.tenant import budget_of

    known, now = calls.snapshot("tenants", "budgets", "spend"), time.time()
    told = [
        {
            "tenant": name,
            "period": each["period"],
            "microusd": each["microusd"],
            "spent_microusd": each["spent_microusd"],
            "left_microusd": max(0, each["microusd"] - each["spent_microusd"]),
            "beyond": "served" if each["soft"] else "refused",
        }
        for name in sorted(known.tenants)
        if tenant in ("", name)
        for each in budget_of(known, known.tenants[name], now)
    ]
    amounts = ("microusd", "spent_microusd", "left_microusd")
    rows = [(row["tenant"], row["period"], *(show_usd(row[name]) for name in amounts), row["beyond"]) for row in told]
    columns = ("TENANT", "PERIOD", "BUDGET", "SPENT", "LEFT", "BEYOND")
    print_found(output, {"budgets": told}, columns, rows, empty="no budgets", least=("BEYOND",))


def reconcile(
    delivered: Annotated[
        Path | None,
        Option(help='What was delivered, by the callers\' own count: lines of {"request_id", "prompt_tokens", …}.'),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the audit log with the store of records, the ledger and what callers say they got.

    Exit code 1 when anything differs.

    Names every difference: requests that are in the log twice, or not, or with other tokens or rows; requests of which
    nobody knows what they used; records that are missing; tenants whose budget counts something else; sums of the store
    that are not the log's, which is read again for that. While requests run, the ledger may be some seconds behind.
    """
    ledger = list(_ledger())
    with calls.service("audit") as audit:
        given = list(_delivered(delivered)) if delivered else ()
        answer = audit("Reconcile", timeout=_READ_SECONDS, ledger=ledger, delivered=given)
    with calls.service("records") as records:
        stored = records("Compare", timeout=_PROJECT_SECONDS)
    differ = [{"what": each.what, "subject": each.subject, "detail": each.detail} for each in answer.differences]
    differ += [{"what": "sums", "subject": each.subject, "detail": each.detail} for each in stored.differences]
    if as_json:
        print_json(
            plain(answer, unset=True) | {"differences": differ, "store": {"first": stored.first, "last": stored.last}}
        )
    else:
        for each in differ:
            say(f"{each['what']}: {each['subject']}: {each['detail']}")
        told = f"{answer.requests} requests of {answer.sequence} records, {len(ledger)} tenants with a budget"
        say(f"{told}, sums up to record {stored.last}: {'they differ' if differ else 'they agree'}")
    if differ:
        raise SystemExit(1)


def moment(option: str, text: str) -> tuple[Any, Any]:
    """When a day or an hour begins and ends, as Timestamps.

    :raises UsageError: it is neither.
    """
    from google.protobuf.timestamp_pb2 import Timestamp

    for form, seconds in (("%Y-%m-%d", 86_400), ("%Y-%m-%dT%H", 3_600)):
        try:
            begins = int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp())
        except ValueError:
            continue
        return Timestamp(seconds=begins), Timestamp(seconds=begins + seconds)
    raise UsageError(f"{option}: a day or an hour, UTC, such as 2026-11-01 or 2026-11-01T14; not {text!r}")


def _cells(row: Any) -> tuple[object, ...]:
    tokens = (row.prompt_tokens, row.cached_prompt_tokens, row.completion_tokens)
    spent = show_usd(row.spend_microusd)
    most = row.at_most_tokens, row.at_most_rows
    return (*row.values, row.requests, row.refused, *tokens, row.rows, spent, row.unknown, *most)


def _ledger() -> Iterator[dict[str, Any]]:
    """What the limiter has written of tenants with a budget."""
    known = calls.snapshot("tenants", "budgets", "spend")
    for tenant, spend in known.spend.items():
        if tenant in known.budgets:
            names = ("day", "day_microusd", "month", "month_microusd")
            zone = known.tenants[tenant].time_zone if tenant in known.tenants else ""
            yield {"tenant": tenant, "time_zone": zone, **{name: getattr(spend, name) for name in names}}


def _delivered(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise failed(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            names = ("prompt_tokens", "completion_tokens", "rows")
            yield {"request_id": str(found["request_id"]), **{name: int(found.get(name, 0)) for name in names}}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}, line {number}: needs request_id, and tokens or rows") from error


COMMANDS = {"show": show, "budgets": budgets, "reconcile": reconcile}
