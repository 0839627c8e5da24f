"""`weir requests`: what there was, out of the store of records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from libs.resources.forms import plain
from libs.resources.quantities import show_usd
from libs.usage.records import PREDICT
from services.cli import calls
from services.cli.app import CsvOutput, Option, UsageError
from services.cli.commands.usage import moment
from services.cli.output import cell, print_found, print_json, short, timestamp, write

_COLUMNS = (
    "TIME (UTC)",
    "REQUEST",
    "TENANT",
    "MODEL",
    "OUTCOME",
    "PROMPT",
    "OUTPUT",
    "COST",
    "CLASS",
    "KEY",
    "WHAT",
    "USER",
)
_WIDE = ("CLASS", "KEY", "WHAT", "USER")
_LEAST = ("COST", "PROMPT", "OUTPUT", "TENANT", "MODEL")
_PAGE = 1_000
_LOOK_SECONDS = 1.0


def requests(
    request: Annotated[str, Option("--id", help="The request with this id.")] = "",
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    key: Annotated[str, Option(help="Only of this key, by id.", metavar="ID")] = "",
    user: Annotated[str, Option(help="Only of this end user, as -o wide shows it: 2026-11/…")] = "",
    model: Annotated[str, Option(help="Only of this model, or version with its @.")] = "",
    queue_class: Annotated[str, Option("--class", help="Only of this class: paid, free, over_quota, batch.")] = "",
    outcome: Annotated[str, Option(help="Only with this outcome: stop, length, error, rejected, …")] = "",
    first: Annotated[str, Option("--from", help="The first day or hour, UTC: 2026-11-01, or 2026-11-01T14.")] = "",
    last: Annotated[str, Option("--to", help="The last day or hour, UTC, inclusive.")] = "",
    limit: Annotated[int, Option("--limit -n", least=1, most=100_000, help="How many at most.")] = 50,
    follow: Annotated[bool, Option("--follow -f", help="Show those that end from now on, until interrupted.")] = False,
    output: CsvOutput = "table",
) -> None:
    """Show requests that ended, the newest first: whose, of what, with what outcome and cost.

    No word of them is shown. End users stand under a name that changes every month, and is nobody's once they are
    erased; `weir usage show --by user` names them.
    """
    exact = "model_version" if "@" in model else "model"
    asked: dict[str, Any] = {"request_id": request, "tenant": tenant, "key_id": key, "user": user, exact: model}
    asked |= {"queue_class": queue_class, "outcome": outcome}
    if first:
        asked["since"] = moment("--from", first)[0]
    if last:
        asked["until"] = moment("--to", last)[1]
    if follow:
        if output == "csv":
            raise UsageError("--follow prints lines, of a table or of JSON")
        _follow(asked, output)
        return
    found = list(_pages(asked, limit))
    told, rows = [plain(each, unset=True) for each in found], [_cells(each, output == "wide") for each in found]
    print_found(output, {"requests": told}, _COLUMNS, rows, empty="no such requests", extra=_WIDE, least=_LEAST)


def _pages(asked: dict[str, Any], limit: int) -> Iterator[Any]:
    token = ""
    with calls.service("records") as records:
        while limit:
            page = records("ListRequests", page_size=min(limit, _PAGE), page_token=token, **asked)
            yield from page.requests
            limit, token = limit - len(page.requests), page.next_page_token
            if not token:
                return


def _follow(asked: dict[str, Any], output: str) -> None:
    with calls.service("records") as records:
        after = records("ListRequests", page_size=1).sequence
        while True:
            page = records("ListRequests", page_size=_PAGE, after=after, **asked)
            for each in page.requests:
                if output == "json":
                    print_json(plain(each, unset=True), indent=None)
                else:
                    cells = map(cell, _cells(each, output == "wide"))
                    write("  ".join(cells if output == "wide" else list(cells)[: -len(_WIDE)]) + "\n")
            after = page.sequence
            if len(page.requests) < _PAGE:
                time.sleep(_LOOK_SECONDS)


def _cells(each: Any, wide: bool) -> tuple[object, ...]:
    used: tuple[object, ...] = (each.prompt_tokens, each.completion_tokens)
    if each.operation == PREDICT:
        used = (None, f"{each.rows} rows")
    model = each.model_version or each.model
    who = (each.queue_class, each.key_id, each.operation, each.user)
    moment_of = short(timestamp(each.time), wide=wide)
    spent = show_usd(each.spend_microusd)
    return (moment_of, each.request_id, each.tenant, model, each.outcome, *used, spent, *who)
