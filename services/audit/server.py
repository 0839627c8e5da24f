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
from services.audit.eraser import Eraser
from services.audit.exporter import Exporter
from services.audit.feed import Feed
from services.audit.reader import Reader
from services.audit.reconciler import Reconciler

SERVICE = "weir.audit.v1.AuditService"


def appended(sequence: int, duplicate: bool) -> audit_pb2.AuditReply:
    """Return the reply to an append that is on disk."""
    return audit_pb2.AuditReply(appended=audit_pb2.Appended(sequence=sequence, duplicate=duplicate))


_RELAYED = {"registry": frozenset({"rollout"})}
"""Whose records a peer hands over beside its own: the rollout controller's decisions are written into the registry's
outbox with the change itself, and the registry empties it."""


_REFUSED = frozenset({Reason.INVALID_REQUEST, Reason.PAYLOAD_TOO_LARGE, Reason.PERMISSION_DENIED})


class AppendHandler:
    """Handles the calls of all sessions: each is answered when its group is on disk."""

    def __init__(self, *, committer: Committer[audit_pb2.AuditReply], max_record_bytes: int) -> None:
        self._committer = committer
        self._max_record_bytes = max_record_bytes

    def __call__(self, call: audit_pb2.AuditCall, ctx: CallContext) -> Awaitable[audit_pb2.AuditReply]:
        """Return a future of the reply.

        :raises WeirError: INVALID_REQUEST or PAYLOAD_TOO_LARGE for a bad record, PERMISSION_DENIED for one in the name
            of a service whose records the peer does not hand over, DEPENDENCY_UNAVAILABLE or REJECTED_QUEUE_FULL when
            the disk fails or falls behind; CONFLICT (through the future) for a batch of an epoch that is over.
        """
        operation = call.WhichOneof("op")
        if operation is None:
            raise WeirError(Reason.INVALID_REQUEST, "the call has no operation", limit="op")
        try:
            if operation == "append_batch":
                return self._append_batch(call.append_batch, ctx)
            return self._append(call.append.record, ctx)
        except WeirError as error:
            if error.reason in _REFUSED:
                metrics.REFUSED.inc()
            raise

    def _append(self, record: audit_pb2.Record, ctx: CallContext) -> Awaitable[audit_pb2.AuditReply]:
        record.ClearField("origin")
        draft = convert.draft_of_record(record, max_bytes=self._max_record_bytes)
        _check_source(record.source, ctx)
        return self._committer.append(draft)

    def _append_batch(self, batch: audit_pb2.AppendBatch, ctx: CallContext) -> Awaitable[audit_pb2.AuditReply]:
        _check_source(batch.source, ctx)
        incoming = convert.incoming_of(batch, max_bytes=self._max_record_bytes)
        metrics.REFUSED.inc(sum(bool(each.refused) for each in incoming))
        return self._committer.append_batch(incoming)


def _check_source(source: str, ctx: CallContext) -> None:
    service = source.partition("/")[0]
    if service != ctx.peer and service not in _RELAYED.get(ctx.peer, ()):
        raise WeirError(Reason.PERMISSION_DENIED, f"{ctx.peer} may not write as {source}", limit="source")


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    """The RPCs; who may write comes from the settings, who may read from the registry."""

    def __init__(
        self,
        *,
        mux: MuxServer,
        reader: Reader,
        reconciler: Reconciler,
        feed: Feed,
        eraser: Eraser,
        exporter: Exporter,
        roles: RegistryView,
        tls: bool,
    ) -> None:
        """:param roles: knows who may read."""
        self._mux = mux
        self._reader = reader
        self._reconciler = reconciler
        self._feed = feed
        self._eraser = eraser
        self._exporter = exporter
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

    async def Erase(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.EraseRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.EraseResponse:
        """Destroys keys, and puts a tombstone into the log.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but owners; others as `Eraser.erase`.
        """
        metrics.READS.labels("erase").inc()
        grant = require_role("audit.Erase", context, self._roles.snapshot, tls=self._tls)
        return await self._eraser.erase(request, grant.actor)

    async def Export(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.ExportRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[audit_pb2.ExportResponse]:
        """Signed records.

        :raises WeirError: SCOPE_MISSING, PERMISSION_DENIED for all but auditors, of their tenants, and owners; others
            as `Exporter.export`.
        """
        metrics.READS.labels("export").inc()
        grant = require_role("audit.Export", context, self._roles.snapshot, tls=self._tls)
        if not grant.knows(request.tenant):
            raise WeirError(Reason.PERMISSION_DENIED, f"{grant.actor} reads of its tenants alone", limit="tenant")
        async for piece in self._exporter.export(request, grant.actor):
            yield piece

    async def RotateKeys(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.RotateKeysRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.RotateKeysResponse:
        """Wraps every key anew.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but owners; DEPENDENCY_UNAVAILABLE.
        """
        metrics.READS.labels("rotate").inc()
        grant = require_role("audit.RotateKeys", context, self._roles.snapshot, tls=self._tls)
        return await self._eraser.rotate(grant.actor)

    async def Read(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.ReadRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.ReadResponse:
        """Lines for the store of records, whose certificate alone may ask.

        :raises WeirError: CONFLICT, DEPENDENCY_UNAVAILABLE as `Feed.read`.
        """
        return await self._feed.read(request)

    async def Users(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.UsersRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.UsersResponse:
        """Names for the store of records, likewise.

        :raises WeirError: INVALID_REQUEST, DEPENDENCY_UNAVAILABLE as `Feed.users`.
        """
        metrics.READS.labels("users").inc()
        return await self._feed.users(request)

    async def Reconcile(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.ReconcileRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.ReconcileResponse:
        """Compares the log with other books.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED for anybody but auditors and owners; INVALID_REQUEST;
            DEPENDENCY_UNAVAILABLE when the log cannot be read.
        """
        metrics.READS.labels("reconcile").inc()
        require_role("audit.Reconcile", context, self._roles.snapshot, tls=self._tls)
        return await self._reconciler.reconcile(request)
