"""The audit log behind `AuditPort`: its service over a multiplexed stream, or nothing."""

from __future__ import annotations

import random

from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import Codec, MuxClient, Semantics
from libs.rpc import make_channel
from services.registry.config import Settings


class AuditLink:
    """`AuditPort` over the audit service's stream; `run` keeps the stream."""

    def __init__(self, settings: Settings, *, clock: Clock, rng: random.Random) -> None:
        name = None if settings.audit_target.startswith("xds:") else "audit.weir.internal"
        self._channel = make_channel(settings.audit_target, tls=settings.tls, server_name=name)
        stub = audit_pb2_grpc.AuditServiceStub(self._channel)
        self._clock = clock
        self._timeout = settings.audit_timeout
        self._client = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            hello=mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone),
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Goes on until cancelled."""
        try:
            await self._client.run()
        finally:
            await self._channel.close()

    async def append(self, record: audit_pb2.Record) -> None:
        """See `AuditPort`."""
        await self._client.call(
            audit_pb2.AuditCall(append=audit_pb2.Append(record=record)),
            deadline=Deadline.after(self._timeout, self._clock),
            semantics=Semantics.RETRY,
        )


class NoAudit:
    """`AuditPort` of a registry without an audit service: records wait in their outbox."""

    async def run(self) -> None:
        """Has nothing to do."""

    async def append(self, record: audit_pb2.Record) -> None:
        """See `AuditPort`."""
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "no audit service is configured")
