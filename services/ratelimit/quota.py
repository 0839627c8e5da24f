"""`weir.quota.v1`: one call of a quota session, answered at once from the ledger."""

from collections.abc import AsyncIterator

import grpc
from weir.errors.v1 import errors_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.errors import Reason, WeirError
from libs.gcra import Admitted, Denied, Ledger, LimitKind, LimitReport, SettledAlready
from libs.mux import CallContext, MuxServer
from libs.rpc import require_peer
from services.ratelimit import metrics
from services.ratelimit.ports import Nanoseconds

SERVICE = "weir.quota.v1.QuotaService"
_SECOND = 1_000_000_000
_REASONS = {
    LimitKind.REQUESTS: Reason.QUOTA_REQUESTS,
    LimitKind.TOKENS: Reason.QUOTA_TOKENS,
    LimitKind.CONCURRENCY: Reason.QUOTA_CONCURRENCY,
}


class QuotaHandler:
    """Handles calls synchronously: between two of them the ledger is never half changed, so limits hold exactly."""

    def __init__(self, *, ledger: Ledger, now: Nanoseconds, lease_seconds: float, max_lease_seconds: float) -> None:
        self._ledger = ledger
        self._now = now
        self._lease_ns = int(lease_seconds * _SECOND)
        self._max_lease_ns = int(max_lease_seconds * _SECOND)

    def __call__(self, call: quota_pb2.QuotaCall, _: CallContext) -> quota_pb2.QuotaReply:
        """The reply to one call.

        :raises WeirError: INVALID_REQUEST for a call without operation, tenant or request id; CONFLICT for reserving
            an id that was settled.
        """
        if call.HasField("reserve"):
            return self._reserve(call.reserve)
        if call.HasField("settle"):
            return self._settle(call.settle)
        raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")

    def _reserve(self, ask: quota_pb2.Reserve) -> quota_pb2.QuotaReply:
        tenant, request_id = ask.tenant, ask.request_id
        _require(tenant, request_id)
        lease_ns = self._lease_ns
        if ask.HasField("lease"):
            lease = ask.lease
            lease_ns = min(max(0, lease.seconds * _SECOND + lease.nanos), self._max_lease_ns)
        outcome = self._ledger.reserve(
            tenant,
            ask.model,
            request_id,
            ask.tokens,
            count_request=not ask.request_counted,
            lease_ns=lease_ns,
            now=self._now(),
        )
        if isinstance(outcome, Admitted):
            metrics.RESERVE_OK.inc()
            return _reserved(outcome)
        if isinstance(outcome, SettledAlready):
            metrics.RESERVE_SETTLED.inc()
            raise WeirError(Reason.CONFLICT, "this request id was settled already", limit="request_id")
        metrics.RESERVE_DENIED[outcome.kind].inc()
        return quota_pb2.QuotaReply(rejected=_rejection(outcome))

    def _settle(self, ask: quota_pb2.Settle) -> quota_pb2.QuotaReply:
        tenant, request_id = ask.tenant, ask.request_id
        _require(tenant, request_id)
        known = self._ledger.settle(tenant, ask.model, request_id, ask.tokens, self._now())
        (metrics.SETTLE_KNOWN if known else metrics.SETTLE_UNKNOWN).inc()
        reply = quota_pb2.QuotaReply()
        reply.settled.SetInParent()
        reply.settled.known = known
        return reply


class QuotaServicer(quota_pb2_grpc.QuotaServiceServicer):
    """The multiplexed stream of each gateway."""

    def __init__(self, *, mux: MuxServer, peers: tuple[str, ...], tls: bool) -> None:
        self._mux = mux
        self._peers = peers
        self._tls = tls

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[quota_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one stream until it ends.

        :raises WeirError: PERMISSION_DENIED for a peer that may not reserve.
        """
        require_peer(context, self._peers, tls=self._tls)
        await self._mux.serve(request_iterator, context)


def _require(tenant: str, request_id: str) -> None:
    if not tenant or not request_id:
        missing = "request_id" if tenant else "tenant"
        raise WeirError(Reason.INVALID_REQUEST, f"{missing} is missing", limit=missing)


def _reserved(outcome: Admitted) -> quota_pb2.QuotaReply:
    reply = quota_pb2.QuotaReply()
    reserved = reply.reserved
    reserved.SetInParent()
    if outcome.requests.limit:
        _fill(reserved.requests, outcome.requests)
    if outcome.tokens.limit:
        _fill(reserved.tokens, outcome.tokens)
    if outcome.concurrency.limit:
        _fill(reserved.concurrency, outcome.concurrency)
    return reply


def _fill(status: quota_pb2.LimitStatus, report: LimitReport) -> None:
    status.limit = report.limit
    status.remaining = report.remaining
    if report.reset_ns:
        reset = status.reset
        reset.seconds, reset.nanos = divmod(report.reset_ns, _SECOND)


def _rejection(denied: Denied) -> errors_pb2.Rejection:
    after = denied.retry_after_ns
    return WeirError(
        _REASONS[denied.kind],
        denied.message(),
        limit=denied.kind.value,
        retry_after=None if after is None else after / _SECOND,
    ).to_rejection()
