"""Protos to questions, and answers to protos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from weir.records.v1 import records_pb2

from libs.errors import Reason, WeirError
from libs.usage import Counts
from services.records.queries import DIMENSIONS, MAX_PAGE, Page, Question, Wanted, behind

_DEFAULT_PAGE = 50
_HOUR = 3600
_COLUMNS = {
    "tenant": "tenant",
    "key_id": "key",
    "user": "user",
    "model": "model",
    "model_version": "version",
    "queue_class": "queue_class",
    "outcome": "outcome",
    "request_id": "id",
}
"""Filters, and the columns that they are about."""


def wanted_of(request: records_pb2.ListRequestsRequest) -> Wanted:
    """Which requests.

    :raises WeirError: INVALID_REQUEST, naming the field.
    """
    if request.page_size > MAX_PAGE:
        raise WeirError(Reason.INVALID_REQUEST, f"at most {MAX_PAGE}", limit="page_size")
    follows = request.HasField("after")
    if follows and request.page_token:
        raise WeirError(Reason.INVALID_REQUEST, "either `after` or a page's token", limit="after")
    return Wanted(
        equal={column: value for name, column in _COLUMNS.items() if (value := getattr(request, name))},
        since=_milliseconds(request, "since"),
        until=_milliseconds(request, "until"),
        size=request.page_size or _DEFAULT_PAGE,
        behind=behind(request.page_token),
        after=request.after if follows else None,
    )


def question_of(request: records_pb2.UsageRequest) -> Question:
    """Which sums.

    :raises WeirError: INVALID_REQUEST for a dimension that there is not, or a moment before 1970.
    """
    by = tuple(request.by)
    if len(set(by)) < len(by) or not DIMENSIONS.keys() >= set(by):
        raise WeirError(Reason.INVALID_REQUEST, f"usage is known by {', '.join(DIMENSIONS)}, each once", limit="by")
    return Question(
        by=by,
        tenant=request.tenant,
        since=_milliseconds(request, "since") // (1000 * _HOUR),
        until=-(-_milliseconds(request, "until") // (1000 * _HOUR)),
        models=tuple(request.models),
        keys=tuple(request.keys),
        operations=tuple(request.operations),
    )


def values_told(by: Sequence[str], values: Sequence[Any]) -> tuple[str, ...]:
    """The values of a row: hours and days as people write them."""
    told = {"hour": hour_of, "day": day_of}
    return tuple(told.get(name, str)(value) for name, value in zip(by, values, strict=True))


def hour_of(hour: int) -> str:
    """ "2026-11-23T14", UTC."""
    return datetime.fromtimestamp(int(hour) * _HOUR, UTC).strftime("%Y-%m-%dT%H")


def day_of(hour: int) -> str:
    """ "2026-11-23", UTC."""
    return hour_of(hour)[:10]


def row_told(row: tuple[tuple[str, ...], Counts]) -> records_pb2.UsageRow:
    """A row of sums."""
    values, counts = row
    return records_pb2.UsageRow(
        values=values,
        requests=counts.requests,
        refused=counts.refused,
        prompt_tokens=counts.prompt,
        cached_prompt_tokens=counts.cached,
        completion_tokens=counts.completion,
        spend_microusd=counts.microusd,
        unknown=counts.unknown,
        at_most_tokens=counts.at_most,
        rows=counts.rows,
        predictions=counts.predictions,
        at_most_rows=counts.at_most_rows,
    )


def page_told(page: Page) -> records_pb2.ListRequestsResponse:
    """A page."""
    return records_pb2.ListRequestsResponse(
        requests=map(_request_told, page.rows), next_page_token=page.token, sequence=page.sequence
    )


def _request_told(row: Mapping[str, Any]) -> records_pb2.Request:
    seconds, rest = divmod(row["time"], 1000)
    return records_pb2.Request(
        sequence=row["sequence"],
        request_id=row["id"],
        time=Timestamp(seconds=seconds, nanos=rest * 1_000_000),
        tenant=row["tenant"],
        key_id=row["key"],
        user=row["user"],
        model=row["model"],
        model_version=row["version"],
        queue_class=row["queue_class"],
        operation=row["operation"],
        outcome=row["outcome"],
        prompt_tokens=row["prompt"],
        cached_prompt_tokens=row["cached"],
        completion_tokens=row["completion"],
        rows=row["rows"],
        spend_microusd=row["microusd"],
        at_most_tokens=row["at_most"],
        at_most_rows=row["at_most_rows"],
    )


def _milliseconds(request: Any, name: str) -> int:
    moment = getattr(request, name).ToNanoseconds() // 1_000_000 if request.HasField(name) else 0
    if moment < 0:
        raise WeirError(Reason.INVALID_REQUEST, "it is before 1970", limit=name)
    return moment
