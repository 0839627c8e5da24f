"""`weir.quota.v1` as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from google.protobuf import duration_pb2
from weir.quota.v1 import quota_pb2

from libs.quota import MINUTE_NS, ROWS, UNLIMITED, Admitted, Allotment, LimitReport, Share
from libs.quota.amount import NO_LIMIT, Amount

_DIGEST = 1000
_SECOND = 1_000_000_000
_KINDS = ("tokens", "requests", "spend", "slots")


def digests(tenants: Mapping[str, Sequence[str]]) -> Iterator[quota_pb2.Renew]:
    """Messages of at most `_DIGEST` ids."""
    renew, room = quota_pb2.Renew(), _DIGEST
    for tenant, request_ids in tenants.items():
        start = 0
        while start < len(request_ids):
            some = request_ids[start : start + room]
            renew.held.add(tenant=tenant, request_ids=some)
            start, room = start + len(some), room - len(some)
            if not room:
                yield renew
                renew, room = quota_pb2.Renew(), _DIGEST
    if renew.held:
        yield renew


def limited(reserve: quota_pb2.Reserve) -> tuple[str, str, str]:
    """What says which limits cover a request."""
    return reserve.tenant, ROWS + reserve.model if reserve.rows else reserve.model, reserve.model_version


def less(report: LimitReport, cost: int) -> LimitReport:
    """What is left after that."""
    return report._replace(remaining=max(0, report.remaining - cost)) if report.limit else report


def allotment_of(reply: quota_pb2.QuotaReply) -> Allotment | None:
    """The shares that the owner told with its answer."""
    if not reply.share_number:
        return None
    shares = tuple(map(_share_of, reply.shares))
    return Allotment(reply.share_number, shares, _nanoseconds(reply.share_lasts), reply.allowance)


def fill_allotment(reply: quota_pb2.QuotaReply, told: Allotment) -> None:
    """Tells them."""
    reply.share_number, reply.allowance = told.number, told.allowance
    reply.share_lasts.seconds, reply.share_lasts.nanos = divmod(told.lasts_ns, _SECOND)
    for model, amount in told.shares:
        limited = {kind: much for kind in _KINDS if (much := getattr(amount, kind)) != NO_LIMIT}
        reply.shares.add(model=model, **limited)


def _share_of(share: quota_pb2.Share) -> Share:
    """Absent is unlimited."""
    amounts = {kind: getattr(share, kind) if share.HasField(kind) else NO_LIMIT for kind in _KINDS}
    return Share(share.model, Amount(**amounts))


def report_of(status: quota_pb2.LimitStatus) -> LimitReport:
    """A limit as its owner says it."""
    if not status.limit:
        return UNLIMITED
    period = _nanoseconds(status.period) if status.HasField("period") else MINUTE_NS
    return LimitReport(status.limit, status.remaining, _nanoseconds(status.reset), period)


def fill_status(status: quota_pb2.LimitStatus, report: LimitReport) -> None:
    """Says it, where it is set."""
    if not report.limit:
        return
    status.limit = report.limit
    status.remaining = report.remaining
    if report.reset_ns:
        status.reset.seconds, status.reset.nanos = divmod(report.reset_ns, _SECOND)
    if report.period_ns and report.period_ns != MINUTE_NS:
        status.period.seconds, status.period.nanos = divmod(report.period_ns, _SECOND)


def fill_reserved(reserved: quota_pb2.Reserved, outcome: Admitted) -> None:
    """Writes what is left of each limit into an answer."""
    reserved.SetInParent()
    fill_status(reserved.requests, outcome.requests)
    fill_status(reserved.tokens, outcome.tokens)
    fill_status(reserved.concurrency, outcome.concurrency)
    fill_status(reserved.spend, outcome.spend)
    if outcome.over_quota:
        reserved.over_quota = True


def admitted_of(reserved: quota_pb2.Reserved) -> Admitted:
    """What was answered."""
    return Admitted(
        report_of(reserved.requests),
        report_of(reserved.tokens),
        report_of(reserved.concurrency),
        report_of(reserved.spend),
    )


def _nanoseconds(duration: duration_pb2.Duration) -> int:
    return duration.seconds * _SECOND + duration.nanos
