"""`weir.quota.v1`: one call of a quota session, answered at once from the ledger."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import grpc
from google.protobuf import duration_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.errors import Reason, WeirError
from libs.limiter.wire import fill_allotment, fill_reserved
from libs.mux import CallContext, MuxServer
from libs.quota import REASONS, Admitted, Denied, Replica, SettledAlready, answer, ask_of, error_of, used_of
from services.ratelimit import metrics
from services.ratelimit.convert import cursor_of, fill_state, logged_of
from services.ratelimit.holders import Holders
from services.ratelimit.keeper import LedgerKeeper
from services.ratelimit.owners import Owners
from services.ratelimit.pauses import uncollected
from services.ratelimit.peers import Peers
from services.ratelimit.policy.headers import jittered
from services.ratelimit.ports import Nanoseconds
from services.ratelimit.rules import Rules

SERVICE = "weir.quota.v1.QuotaService"
REPLICA = "ratelimit"
"""Who may ask what only replicas ask."""
_SECOND = 1_000_000_000
_SETTLED = {known: quota_pb2.Settled(known=known) for known in (False, True)}


class QuotaHandler:
    """Handles calls synchronously: between two of them the ledger is never half changed, so limits hold exactly."""

    def __init__(
        self,
        *,
        replica: Replica,
        rules: Rules,
        holders: Holders,
        keeper: LedgerKeeper,
        peers: Peers,
        owners: Owners,
        strayed: Callable[[], None],
        now: Nanoseconds,
        rng: random.Random,
        lease_seconds: float,
    ) -> None:
        """`strayed` is told of a session that asks for what another replica owns."""
        self._replica = replica
        self._ledger = replica.ledger
        self._rules = rules
        self._holders = holders
        self._keeper = keeper
        self._peers = peers
        self._now = now
        self._rng = rng
        self._owners = owners
        self._strayed = strayed
        self._lease_ns = int(lease_seconds * _SECOND)

    def __call__(self, call: quota_pb2.QuotaCall, context: CallContext) -> quota_pb2.QuotaReply:
        """The reply to one call.

        :raises WeirError: INVALID_REQUEST for a call without operation, tenant or request id, or with more tokens than
            any request has; CONFLICT for reserving
            an id that was settled; NOT_OWNER where another replica is the tenant's owner: only it grants;
            PERMISSION_DENIED for what only replicas may ask.
        """
        operation = call.WhichOneof("op")
        if operation == "reserve":
            return self._reserve(call.reserve, context)
        if operation == "settle":
            return self._settle(call.settle)
        if operation == "renew":
            return self._renew(call.renew, context)
        if operation is None:
            raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")
        if context.peer != REPLICA:
            raise WeirError(Reason.PERMISSION_DENIED, "only replicas of the limiter may ask this")
        if operation == "check_edge":
            return self._check_edge(call.check_edge)
        if operation == "replicate":
            if call.replicate.origin != context.session.hello.instance:
                raise WeirError(Reason.PERMISSION_DENIED, "a replica tells of its own decisions only", limit="origin")
            return self._replicate(call.replicate)
        return self._state(call.fetch_state)

    def _reserve(self, reserve: quota_pb2.Reserve, context: CallContext) -> quota_pb2.QuotaReply:
        _require(reserve.tenant, reserve.request_id)
        owned = self._owners.link(reserve.tenant) is None
        if not owned and not reserve.granted:
            self._strayed()
            raise WeirError(Reason.NOT_OWNER, "another replica owns this tenant", limit="tenant", retry_after=0.25)
        holder = self._holders.hold(context.session)
        now = self._now()
        lease_ns = _nanoseconds(reserve.lease) if reserve.HasField("lease") else self._lease_ns
        ask = ask_of(reserve, self._rules.prices, holder=holder)
        outcome, told = answer(
            self._ledger,
            ask,
            seen=reserve.share_seen,
            wanted=reserve.share_wanted,
            lease_ns=lease_ns,
            now=now,
            owned=owned,
        )
        if isinstance(outcome, SettledAlready):
            metrics.RESERVED.of["settled_already"] += 1
            raise WeirError(Reason.CONFLICT, "this request id was settled already", limit="request_id")
        self._keeper.decided()
        if isinstance(outcome, Admitted):
            metrics.RESERVED.of["over_quota" if outcome.over_quota else "ok"] += 1
            metrics.GRANTED.of["gateway" if reserve.granted else "limiter"] += 1
            reply = quota_pb2.QuotaReply()
            fill_reserved(reply.reserved, outcome)
        else:
            metrics.RESERVED.of[REASONS[outcome.kind].name] += 1
            reply = self._refused(outcome)
        if told is not None:
            fill_allotment(reply, told)
        return reply

    def _renew(self, renew: quota_pb2.Renew, context: CallContext) -> quota_pb2.QuotaReply:
        self._holders.hold(context.session)
        lease_ns, now = _nanoseconds(renew.lease) or self._lease_ns, self._now()
        reply = quota_pb2.QuotaReply()
        reply.renewed.SetInParent()
        for held in renew.held:
            unknown = self._ledger.renew(held.tenant, held.request_ids, lease_ns=lease_ns, now=now)
            if unknown:
                reply.renewed.unknown.add(tenant=held.tenant, request_ids=unknown)
        return reply

    def _settle(self, ask: quota_pb2.Settle) -> quota_pb2.QuotaReply:
        _require(ask.tenant, ask.request_id)
        model, tokens, spend = used_of(ask, self._rules.prices)  # never refused: the lease has to end
        known = self._ledger.settle(
            ask.tenant,
            model,
            ask.request_id,
            tokens,
            self._now(),
            spend=spend,
            version=ask.model_version,
            over_quota=ask.over_quota,
        )
        metrics.SETTLED.of["true" if known else "false"] += 1
        self._keeper.decided()
        return quota_pb2.QuotaReply(settled=_SETTLED[known])

    def _check_edge(self, ask: quota_pb2.CheckEdge) -> quota_pb2.QuotaReply:
        outcome = self._ledger.admit_edge(
            ask.tenant, requests=ask.requests, tokens=ask.tokens, spend=self._rules.least_spend, now=self._now()
        )
        if isinstance(outcome, Denied):
            return self._refused(outcome)
        self._keeper.decided()
        reply = quota_pb2.QuotaReply()
        fill_reserved(reply.edge_passed, outcome)
        return reply

    def _refused(self, denied: Denied) -> quota_pb2.QuotaReply:
        retry = jittered(denied.retry_after_ns, self._rng.random())
        return quota_pb2.QuotaReply(rejected=error_of(denied, retry).to_rejection())

    def _replicate(self, ask: quota_pb2.Replicate) -> quota_pb2.QuotaReply:
        gap = not self._replica.follow(logged_of(ask), self._now())
        if gap:
            metrics.REPLICATION_GAP.inc()
            self._peers.want_state(ask.origin)
        else:
            metrics.REPLICATED.inc()
        reply = quota_pb2.QuotaReply()
        reply.replicated.SetInParent()
        reply.replicated.gap = gap
        return reply

    def _state(self, ask: quota_pb2.FetchState) -> quota_pb2.QuotaReply:
        cursor = cursor_of(ask)
        self._keeper.publish()  # what is in a piece is told to nobody again
        reply = quota_pb2.QuotaReply()
        with uncollected():
            fill_state(reply.state, self._replica.piece(cursor, self._now()))
        return reply


class QuotaServicer(quota_pb2_grpc.QuotaServiceServicer):
    """The multiplexed stream of each gateway and replica."""

    def __init__(self, *, mux: MuxServer) -> None:
        self._mux = mux

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[quota_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one stream until it ends."""
        await self._mux.serve(request_iterator, context)


def _require(tenant: str, request_id: str) -> None:
    if not tenant or not request_id:
        missing = "request_id" if tenant else "tenant"
        raise WeirError(Reason.INVALID_REQUEST, f"{missing} is missing", limit=missing)


def _nanoseconds(duration: duration_pb2.Duration) -> int:
    return max(0, int(duration.seconds) * _SECOND + int(duration.nanos))
