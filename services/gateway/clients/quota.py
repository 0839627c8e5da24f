"""Quota: reserve → settle over the multiplexed stream. Fallback: the same buckets on this gateway's share."""

from __future__ import annotations

import contextlib
from asyncio import Future

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration, to_seconds
from libs.errors import Reason, WeirError
from libs.gcra import Denied, Ledger, LimitKind, LimitReport, LimitSpec, SettledAlready
from libs.mux import MuxClient, Semantics
from libs.registry import RegistrySnapshot
from services.gateway.clients.decision import start_decision
from services.gateway.ports import Reservation

_KINDS = {
    LimitKind.REQUESTS: Reason.QUOTA_REQUESTS,
    LimitKind.TOKENS: Reason.QUOTA_TOKENS,
    LimitKind.CONCURRENCY: Reason.QUOTA_CONCURRENCY,
}


class QuotaClient:
    """Implements `QuotaPort`."""

    def __init__(
        self, mux: MuxClient, *, clock: Clock, decide_timeout: float, end_timeout: float, lease_seconds: float
    ) -> None:
        self._mux = mux
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._lease = to_duration(lease_seconds)
        self._lease_ns = int(lease_seconds * 1e9)
        self._local = Ledger()

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Take new limits for the fallback: an equal share per gateway, at least one of each."""
        gateways = max(1, sum(1 for service, _ in snapshot.endpoints if service == "gateway"))

        def share(limit: int) -> int:
            return max(1, limit // gateways) if limit else 0

        specs = {
            key: LimitSpec(share(v.requests_per_minute), share(v.tokens_per_minute), share(v.concurrency))
            for key, v in snapshot.limits.items()
        }
        self._local.apply_limits(specs, self._now())

    def start_reserve(
        self,
        *,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        prompt_tokens: int = 0,
        max_output_tokens: int = 0,
        choices: int = 1,
        model_version: str = "",
        over_quota_allowed: bool = False,
        request_counted: bool,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[Reservation]:
        """See `QuotaPort`."""
        reserve = quota_pb2.Reserve(
            tenant=tenant,
            model=model,
            request_id=request_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            choices=choices,
            model_version=model_version,
            over_quota_allowed=over_quota_allowed,
            request_counted=request_counted,
            lease=self._lease,
        )
        return start_decision(
            self._mux,
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=_reservation,
            fallback=lambda: self._reserve_locally(tenant, model, request_id, tokens, request_counted),
        )

    def settle(
        self,
        *,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        prompt_tokens: int = 0,
        model_version: str = "",
    ) -> None:
        """See `QuotaPort`."""
        if self._local.live_leases:
            self._local.settle(tenant, model, request_id, tokens, self._now())
        settle = quota_pb2.Settle(
            tenant=tenant,
            model=model,
            request_id=request_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            model_version=model_version,
        )
        # A settle that cannot even be queued is covered by the lease's own end.
        with contextlib.suppress(WeirError):
            self._mux.call_nowait(
                quota_pb2.QuotaCall(settle=settle),
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=_ignore,
                lazy=True,
            )

    def _reserve_locally(
        self, tenant: str, model: str, request_id: str, tokens: int, request_counted: bool
    ) -> Reservation:
        outcome = self._local.reserve(
            tenant,
            model,
            request_id,
            tokens,
            count_request=not request_counted,
            lease_ns=self._lease_ns,
            now=self._now(),
        )
        if isinstance(outcome, Denied):
            retry = None if outcome.retry_after_ns is None else outcome.retry_after_ns / 1e9
            raise WeirError(_KINDS[outcome.kind], outcome.message(), limit=outcome.kind.value, retry_after=retry)
        if isinstance(outcome, SettledAlready):
            return Reservation(None, None, local=True)
        return Reservation(_report(outcome.requests), _report(outcome.tokens), local=True)

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1e9)


def _ignore(reply: object, error: WeirError | None) -> None:
    """Settling is at-least-once and harmless to lose: the lease ends by itself."""


def _reservation(reply: quota_pb2.QuotaReply) -> Reservation:
    if reply.HasField("rejected"):
        raise WeirError.from_rejection(reply.rejected)
    reserved = reply.reserved
    return Reservation(
        _limit(reserved.requests), _limit(reserved.tokens), over_quota=reserved.over_quota, spend=_limit(reserved.spend)
    )


def _limit(status: quota_pb2.LimitStatus) -> tuple[int, int, float] | None:
    return (status.limit, status.remaining, to_seconds(status.reset)) if status.limit else None


def _report(report: LimitReport) -> tuple[int, int, float] | None:
    return (report.limit, report.remaining, report.reset_ns / 1e9) if report.limit else None
