"""`weir.quota.v1` as the gateway's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weir.quota.v1 import quota_pb2

from libs.deadlines import to_seconds
from libs.quota import LimitReport, Share

_DIGEST = 1000
_SECOND = 1_000_000_000
State = tuple[int, int, float]
"""Of a limit: how much it is, how much is left, seconds until all of it is."""


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
    return reserve.tenant, reserve.model, reserve.model_version


def less(state: State | None, cost: int) -> State | None:
    """What is left after that."""
    return state and (state[0], max(0, state[1] - cost), state[2])


def share_of(share: quota_pb2.Share) -> Share:
    """What the owner told; absent is unlimited."""
    return Share(
        share.model,
        share.tokens if share.HasField("tokens") else None,
        share.requests if share.HasField("requests") else None,
        share.spend if share.HasField("spend") else None,
        share.slots if share.HasField("slots") else None,
    )


def state_of(status: quota_pb2.LimitStatus) -> State | None:
    """As the owner says it; None is unlimited."""
    return (status.limit, status.remaining, to_seconds(status.reset)) if status.limit else None


def report_of(report: LimitReport) -> State | None:
    """As it is known here; None is unlimited."""
    return (report.limit, report.remaining, report.reset_ns / _SECOND) if report.limit else None
