"""`/v1/organization/usage/completions`, `…/embeddings`, `…/predictions` and `/v1/organization/costs`: what a tenant
used and what it cost, for its own admins. The pages are as OpenAI's, which has no predictions; hours and days are those
of UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp
from weir.openai.v1 import openai_pb2
from weir.records.v1 import records_pb2

from libs.errors import Reason, WeirError

_json = msgspec.json.Encoder().encode
_LATEST = 253_370_764_800
"""The first day of the year 9999: every page from here on still ends on a day that there is."""
_GROUPS = {"model": "version", "api_key_id": "key"}
"""Not "user_id": whose a request was is sealed, and asked of the audit service, which tenants may not."""
_COSTS = {"line_item": "version"}
Asked = openai_pb2.GetUsageRequest | openai_pb2.GetCostsRequest


class Width(NamedTuple):
    """Of a page's buckets."""

    step: timedelta
    form: str
    """Of a bucket's name, as the store of records writes it."""
    default: int
    """Buckets of a page that says nothing."""
    most: int


_DAYS = Width(timedelta(days=1), "%Y-%m-%d", 7, 31)
_WIDTHS = {"": _DAYS, "1d": _DAYS, "1h": Width(timedelta(hours=1), "%Y-%m-%dT%H", 24, 168)}


class Surface(NamedTuple):
    """What a page of usage is about."""

    kind: str
    """In the names of its objects."""
    operations: Sequence[str]
    """Of the requests that are counted."""
    extra: Mapping[str, Any]
    """Fields that say nothing here."""


COMPLETIONS = Surface(
    "completions",
    ("chat", "completion", "generate"),
    {"input_audio_tokens": 0, "output_audio_tokens": 0, "batch": None},
)
EMBEDDINGS = Surface("embeddings", ("embed",), {})
PREDICTIONS = Surface("predictions", ("predict",), {})


class Page(NamedTuple):
    """Buckets that are asked for, `last` inclusive, and by what."""

    first: datetime
    last: datetime
    more: bool
    """There are some behind `last`."""
    groups: Mapping[str, str]
    """OpenAI's names, and the dimensions that they stand for."""
    width: Width = _DAYS

    @property
    def question(self) -> records_pb2.UsageRequest:
        """What the store of records is asked; the tenant is the caller's business."""
        by = ["day" if self.width is _DAYS else "hour", *self.groups.values()]
        return records_pb2.UsageRequest(since=_moment(self.first), until=_moment(self.last + self.width.step), by=by)


def page_of(asked: Asked, now: float) -> Page:
    """The buckets of a page.

    :raises WeirError: INVALID_REQUEST, naming the parameter.
    """
    costs = isinstance(asked, openai_pb2.GetCostsRequest)
    known, widths = (_COSTS, {"": _DAYS, "1d": _DAYS}) if costs else (_GROUPS, _WIDTHS)
    if (width := widths.get(asked.bucket_width)) is None:
        raise _invalid("bucket_width", f"it is known by {' and '.join(sorted(filter(None, widths)))}")
    most = 180 if costs else width.most
    if unknown := [name for name in asked.group_by if name not in known]:
        raise _invalid("group_by", f"{unknown[0][:40]!r} is none of {', '.join(known)}")
    if asked.limit > most:
        raise _invalid("limit", f"a page has at most {most} buckets of this width")
    if not 0 < asked.start_time <= _LATEST:
        raise _invalid("start_time", "say from when, in Unix seconds")
    first, buckets = _begin(asked.start_time, width), asked.limit or width.default
    if asked.page:
        try:
            first = max(first, datetime.strptime(asked.page, width.form).replace(tzinfo=UTC))
            if first > _begin(_LATEST, width):
                raise ValueError(asked.page)
        except ValueError as error:
            raise _invalid("page", "this is the next_page of no page") from error
    end = asked.end_time if 0 < asked.end_time <= _LATEST else int(now) + 1
    # The end is exclusive: the last bucket is the one of the second before.
    final = _begin(max(end - 1, asked.start_time), width)
    last = min(final, first + (buckets - 1) * width.step)
    return Page(first, last, last < final, {name: known[name] for name in dict.fromkeys(asked.group_by)}, width)


def usage_body(page: Page, surface: Surface, rows: Iterable[records_pb2.UsageRow]) -> bytes:
    """The body of a page of usage."""

    def result(row: records_pb2.UsageRow, names: Mapping[str, str]) -> dict[str, Any]:
        used = {"input_tokens": row.prompt_tokens}
        if surface is PREDICTIONS:
            used = {"num_rows": row.rows}
        elif surface is COMPLETIONS:
            used |= {"output_tokens": row.completion_tokens, "input_cached_tokens": row.cached_prompt_tokens}
        return {
            "object": f"organization.usage.{surface.kind}.result",
            **used,
            "num_model_requests": row.requests,
            "project_id": None,
            "user_id": None,
            **{name: names.get(name) for name in _GROUPS},
            **surface.extra,
        }

    return _body(page, rows, result)


def costs_body(page: Page, rows: Iterable[records_pb2.UsageRow]) -> bytes:
    """The body of a page of costs."""

    def result(row: records_pb2.UsageRow, names: Mapping[str, str]) -> dict[str, Any]:
        return {
            "object": "organization.costs.result",
            "amount": {"value": row.spend_microusd / 1e6, "currency": "usd"},
            "line_item": names.get("line_item"),
            "project_id": None,
        }

    return _body(page, rows, result)


def _body(page: Page, rows: Iterable[records_pb2.UsageRow], result: Callable[..., dict[str, Any]]) -> bytes:
    by_bucket: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row.requests:  # refused ones alone
            continue
        bucket, *values = row.values
        by_bucket.setdefault(bucket, []).append(result(row, dict(zip(page.groups, values, strict=True))))
    form, step = page.width.form, page.width.step
    data = [
        {
            "object": "bucket",
            "start_time": int(begin.timestamp()),
            "end_time": int((begin + step).timestamp()),
            "results": by_bucket.get(begin.strftime(form), []),
        }
        for begin in _buckets(page)
    ]
    following = (page.last + step).strftime(form) if page.more else None
    return _json({"object": "page", "data": data, "has_more": page.more, "next_page": following})


def _buckets(page: Page) -> Iterator[datetime]:
    begin = page.first
    while begin <= page.last:
        yield begin
        begin += page.width.step


def _begin(seconds: int, width: Width) -> datetime:
    return datetime.fromtimestamp(seconds - seconds % int(width.step.total_seconds()), UTC)


def _moment(time: datetime) -> Timestamp:
    return Timestamp(seconds=int(time.timestamp()))


def _invalid(parameter: str, message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=parameter)
