"""`weir.audit.v1`: appends over the multiplexed session, reads and verification for operators."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.errors import Reason, WeirError
from libs.mux import CallContext, MuxServer
from libs.registry import RegistryView
from libs.registry.roles import require_role
from services.audit import convert, metrics
from services.audit.committer import Committer
from services.audit.reader import Reader

SERVICE = "weir.audit.v1.AuditService"


def appended(sequence: int, duplicate: bool) -> audit_pb2.AuditReply:
    """Return the reply to an append that is on disk."""
    return audit_pb2.AuditReply(appended=audit_pb2.Appended(sequence=sequence, duplicate=duplicate))


_RELAYED = {"registry": frozenset({"rollout"})}
"""Whose records a peer hands over beside its own: the rollout controller's decisions are written into the registry's
outbox with the change itself, and the registry empties it."""


class AppendHandler:
    """Handles the calls of all sessions: each is answered when its group is on disk."""

    def __init__(self, *, committer: Committer[audit_pb2.AuditReply], max_record_bytes: int) -> None:
        self._committer = committer
        self._max_record_bytes = max_record_bytes

    def __call__(self, call: audit_pb2.AuditCall, ctx: CallContext) -> Awaitable[audit_pb2.AuditReply]:
        """Return a future of the reply.

        :raises WeirError: INVALID_REQUEST or PAYLOAD_TOO_LARGE for a bad record, PERMISSION_DENIED for one in the name
            of a service whose records the peer does not hand over, DEPENDENCY_UNAVAILABLE or REJECTED_QUEUE_FULL when
            the disk fails or falls behind.
        """
        if not call.HasField("append"):
            raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")
        record = call.append.record
        try:
            encoded = convert.record_json(record, max_bytes=self._max_record_bytes)
            source = record.source.partition("/")[0]
            if source != ctx.peer and source not in _RELAYED.get(ctx.peer, ()):
                raise WeirError(
                    Reason.PERMISSION_DENIED, f"{ctx.peer} may not write as {record.source}", limit="source"
                )
        except WeirError:
            metrics.REFUSED.inc()
            raise
        return self._committer.append(record.id, encoded)


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    """The RPCs; who may write comes from the settings, who may read from the registry."""

    def __init__(
        self,
        *,
        mux: MuxServer,
        reader: Reader,
        roles: RegistryView,
        tls: bool,
    ) -> None:
        """:param roles: knows who may read."""
        self._mux = mux
        self._reader = reader
        self._roles = roles
        self._tls = tls
        self._verifying = asyncio.Lock()

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[audit_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one writer's stream until it ends."""
        await self._mux.serve(request_iterator, context)

    async def Tail(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.TailRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.TailResponse:
        """Returns the newest records.

        :raises WeirError: SCOPE_MISSING, PERMISSION_DENIED for all but auditors and owners; DEPENDENCY_UNAVAILABLE
            when the read cannot be recorded.
        """
        metrics.READS.labels("tail").inc()
        grant = require_role("audit.Tail", context, self._roles.snapshot, tls=self._tls)
        if not grant.knows(request.tenant):
            raise WeirError(Reason.PERMISSION_DENIED, f"{grant.actor} reads of its tenants alone", limit="tenant")
        return await self._reader.tail(request, grant.actor)

    async def Verify(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.VerifyRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.VerifyResponse:
        """Verifies the chain; one verification at a time.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but auditors and owners.
        """
        metrics.READS.labels("verify").inc()
        grant = require_role("audit.Verify", context, self._roles.snapshot, tls=self._tls)
        async with self._verifying:
            return await self._reader.verify(grant.actor)

    async def Accept(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.AcceptRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.AcceptResponse:
        """Takes the log as it is for the true one.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but owners; INVALID_REQUEST without a reason
            or where nothing is wrong; DEPENDENCY_UNAVAILABLE or CONFLICT when the anchors cannot be replaced.
        """
        metrics.READS.labels("accept").inc()
        grant = require_role("audit.Accept", context, self._roles.snapshot, tls=self._tls)
        return await self._reader.accept(request, grant.actor)
