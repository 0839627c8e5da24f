"""`/v1/organization/usage/completions`, `…/usage/predictions` and `/v1/organization/costs`: what a tenant used and what
it cost, for its own admins. The pages are as OpenAI's, which has no predictions; days are those of UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from weir.audit.v1 import audit_pb2
from weir.openai.v1 import openai_pb2

from libs.errors import Reason, WeirError

_json = msgspec.json.Encoder().encode
_DAY = timedelta(days=1)
_DEFAULT_DAYS = 7
_LATEST = 253_370_764_800
"""The first day of the year 9999: every page from here on still ends on a day that there is."""
_USAGE = {"model": "version", "api_key_id": "key"}
"""Not "user_id": users are sealed, and adding up by them reads the whole log, which no tenant may ask for."""
_COSTS = {"line_item": "version"}
Asked = openai_pb2.GetUsageRequest | openai_pb2.GetCostsRequest


class Page(NamedTuple):
    """Days that are asked for, `last` inclusive, and by what."""

    first: datetime
    last: datetime
    more: bool
    """There are days behind `last`."""
    groups: Mapping[str, str]
    """OpenAI's names, and the dimensions that they stand for."""

    @property
    def question(self) -> audit_pb2.UsageRequest:
        """What the audit service is asked; the tenant is the caller's business."""
        by = ["day", *self.groups.values()]
        return audit_pb2.UsageRequest(first_day=_name(self.first), last_day=_name(self.last), by=by)


def page_of(asked: Asked, now: float) -> Page:
    """The days of a page.

    :raises WeirError: INVALID_REQUEST, naming the parameter.
    """
    costs = isinstance(asked, openai_pb2.GetCostsRequest)
    known, most = (_COSTS, 180) if costs else (_USAGE, 31)
    if asked.bucket_width not in ("", "1d"):
        raise _invalid("bucket_width", "usage is known by days: 1d")
    if unknown := [name for name in asked.group_by if name not in known]:
        raise _invalid("group_by", f"{unknown[0][:40]!r} is none of {', '.join(known)}")
    if asked.limit > most:
        raise _invalid("limit", f"a page has at most {most} days")
    if not 0 < asked.start_time <= _LATEST:
        raise _invalid("start_time", "say from when, in Unix seconds")
    first, days = _day(asked.start_time), asked.limit or _DEFAULT_DAYS
    if asked.page:
        try:
            first = max(first, datetime.strptime(asked.page, "%Y-%m-%d").replace(tzinfo=UTC))
            if first > _day(_LATEST):
                raise ValueError(asked.page)
        except ValueError as error:
            raise _invalid("page", "this is the next_page of no page") from error
    end = asked.end_time if 0 < asked.end_time <= _LATEST else int(now) + 1
    # The end is exclusive: the last day is the one of the second before.
    final = _day(max(end - 1, asked.start_time))
    last = min(final, first + (days - 1) * _DAY)
    return Page(first, last, last < final, {name: known[name] for name in dict.fromkeys(asked.group_by)})


def usage_body(page: Page, rows: Iterable[audit_pb2.UsageRow]) -> bytes:
    """The body of a page of usage."""

    def result(row: audit_pb2.UsageRow, names: Mapping[str, str]) -> dict[str, Any]:
        return {
            "object": "organization.usage.completions.result",
            "input_tokens": row.prompt_tokens,
            "output_tokens": row.completion_tokens,
            "input_cached_tokens": row.cached_prompt_tokens,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "num_model_requests": row.requests - row.predictions,
            "project_id": None,
            "user_id": None,
            **{name: names.get(name) for name in _USAGE},
            "batch": None,
        }

    return _body(page, (row for row in rows if row.requests > row.predictions), result)


def predictions_body(page: Page, rows: Iterable[audit_pb2.UsageRow]) -> bytes:
    """The body of a page of predictions."""

    def result(row: audit_pb2.UsageRow, names: Mapping[str, str]) -> dict[str, Any]:
        return {
            "object": "organization.usage.predictions.result",
            "num_rows": row.rows,
            "num_model_requests": row.predictions,
            "project_id": None,
            "user_id": None,
            **{name: names.get(name) for name in _USAGE},
        }

    return _body(page, (row for row in rows if row.predictions), result)


def costs_body(page: Page, rows: Iterable[audit_pb2.UsageRow]) -> bytes:
    """The body of a page of costs."""

    def result(row: audit_pb2.UsageRow, names: Mapping[str, str]) -> dict[str, Any]:
        return {
            "object": "organization.costs.result",
            "amount": {"value": row.spend_microusd / 1e6, "currency": "usd"},
            "line_item": names.get("line_item"),
            "project_id": None,
        }

    return _body(page, rows, result)


def _body(page: Page, rows: Iterable[audit_pb2.UsageRow], result: Callable[..., dict[str, Any]]) -> bytes:
    by_day: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row.requests:  # refused ones alone
            continue
        day, *values = row.values
        by_day.setdefault(day, []).append(result(row, dict(zip(page.groups, values, strict=True))))
    data = [
        {
            "object": "bucket",
            "start_time": int(day.timestamp()),
            "end_time": int((day + _DAY).timestamp()),
            "results": by_day.get(_name(day), []),
        }
        for day in _days(page)
    ]
    following = _name(page.last + _DAY) if page.more else None
    return _json({"object": "page", "data": data, "has_more": page.more, "next_page": following})


def _days(page: Page) -> Iterator[datetime]:
    day = page.first
    while day <= page.last:
        yield day
        day += _DAY


def _day(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds - seconds % 86_400, UTC)


def _name(day: datetime) -> str:
    return day.strftime("%Y-%m-%d")


def _invalid(parameter: str, message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=parameter)
