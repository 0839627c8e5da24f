"""`weir.audit.v1`: appends over the multiplexed session, reads and verification for operators."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.auditlog import Report, verify_directory
from libs.auditlog.keys import Verifier
from libs.auditlog.tail import read_tail
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.mux import CallContext, MuxServer
from libs.rpc import peer_service, peer_spiffe, require_peer
from libs.telemetry import get_logger
from services.audit import convert, metrics
from services.audit.anchors import Anchors
from services.audit.committer import Committer

SERVICE = "weir.audit.v1.AuditService"
DEFAULT_TAIL = 20
MAX_TAIL = 1000
log = get_logger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads and verifies the log's files, and leaves a record of each read."""

    log_dir: Path
    checkpoint_dir: Path
    verifier: Verifier
    anchors: Anchors
    committer: Committer[audit_pb2.AuditReply]
    clock: Clock
    rng: random.Random
    source: str
    """This service and instance, "audit/audit-0"."""

    async def tail(self, request: audit_pb2.TailRequest, actor: str) -> audit_pb2.TailResponse:
        """Return the newest records; the read itself is recorded first.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the read cannot be recorded.
        """
        upto = self.committer.count
        await self._record(actor, "audit.Tail", f"audit/{request.tenant or '*'}")
        limit = min(request.limit or DEFAULT_TAIL, MAX_TAIL)
        entries = await asyncio.to_thread(
            read_tail, self.log_dir, limit=limit, upto=upto, wanted=_about(request.tenant)
        )
        return audit_pb2.TailResponse(records=[convert.stored(entry) for entry in entries])

    async def verify(self, actor: str) -> audit_pb2.VerifyResponse:
        """Verify the chain. A log that takes no records any more is verified all the same."""
        try:
            await self._record(actor, "audit.Verify", "audit/*")
        except WeirError as error:
            log.warning("audit_read_unrecorded", actor=actor, action="audit.Verify", reason=error.message)
        try:
            anchor = await self.anchors.read()
        except WeirError:
            anchor = b""
        upto = None if self.committer.damaged else self.committer.count
        report: Report = await asyncio.to_thread(
            verify_directory,
            self.log_dir,
            checkpoints=self.checkpoint_dir,
            public_key=self.verifier,
            anchors=[anchor] if anchor else [],
            upto=upto,
        )
        faults = list(report.faults)
        if self.committer.damaged and self.committer.damaged not in faults:
            faults.append(self.committer.damaged)
        return audit_pb2.VerifyResponse(
            ok=not faults,
            records=report.records,
            checkpoints=report.checkpoints,
            head=report.head,
            faults=faults,
        )

    async def _record(self, actor: str, action: str, resource: str) -> None:
        record = audit_pb2.Record(
            id=f"read-{self.rng.getrandbits(128):032x}",
            source=self.source,
            admin=audit_pb2.AdminEvent(actor=actor, action=action, resource=resource),
        )
        record.time.FromNanoseconds(int(self.clock.time() * 1e9))
        await self.committer.append(record.id, convert.record_json(record, max_bytes=1 << 14))


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    """The RPCs; who may call which comes from the settings."""

    def __init__(
        self,
        *,
        mux: MuxServer,
        reader: Reader,
        session_peers: tuple[str, ...],
        reader_peers: tuple[str, ...],
        tls: bool,
    ) -> None:
        self._mux = mux
        self._reader = reader
        self._session_peers = session_peers
        self._reader_peers = reader_peers
        self._tls = tls
        self._verifying = asyncio.Lock()

    async def Session(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[audit_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serves one writer's stream until it ends.

        :raises WeirError: PERMISSION_DENIED for a peer that may not append.
        """
        require_peer(context, self._session_peers, tls=self._tls)
        await self._mux.serve(request_iterator, context)

    async def Tail(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.TailRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.TailResponse:
        """Returns the newest records.

        :raises WeirError: PERMISSION_DENIED; DEPENDENCY_UNAVAILABLE when the read cannot be recorded.
        """
        metrics.READS.labels("tail").inc()
        return await self._reader.tail(request, self._actor(context))

    async def Verify(  # noqa: N802 - the name on the wire
        self, request: audit_pb2.VerifyRequest, context: grpc.aio.ServicerContext
    ) -> audit_pb2.VerifyResponse:
        """Verifies the chain; one verification at a time.

        :raises WeirError: PERMISSION_DENIED.
        """
        metrics.READS.labels("verify").inc()
        actor = self._actor(context)
        async with self._verifying:
            return await self._reader.verify(actor)

    def _actor(self, context: grpc.aio.ServicerContext) -> str:
        require_peer(context, self._reader_peers, tls=self._tls)
        return peer_spiffe(context) or peer_service(context) or "unidentified"


def _about(tenant: str) -> Callable[[bytes], bool]:
    """Return a test of stored lines: is it about the tenant (any, when empty)?"""
    if not tenant:
        return lambda _: True
    # A cheap look before the line is parsed; the name may also stand in another field.
    mark = tenant.encode()
    return lambda line: mark in line and convert.tenant_of(line) == tenant
