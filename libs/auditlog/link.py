"""A stream to the audit service for those who hand over single records and wait until each is on disk."""

from __future__ import annotations

import random

from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.config import ServiceSettings
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import Codec, MuxClient, Semantics
from libs.rpc import make_channel


class AuditLink:
    """Appends records over one stream, which `run` keeps."""

    def __init__(
        self, target: str, settings: ServiceSettings, *, clock: Clock, rng: random.Random, timeout: float = 5.0
    ) -> None:
        """`timeout` is how many seconds one record's acknowledgement may take."""
        name = None if target.startswith("xds:") else "audit.weir.internal"
        self._channel = make_channel(target, tls=settings.tls, server_name=name)
        stub = audit_pb2_grpc.AuditServiceStub(self._channel)
        self._clock = clock
        self._timeout = timeout
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
        """Returns once the record is on disk; the same record id is stored once.

        :raises WeirError: DEPENDENCY_UNAVAILABLE or DEADLINE_EXCEEDED when the log is away; others when it refuses.
        """
        await self._client.call(
            audit_pb2.AuditCall(append=audit_pb2.Append(record=record)),
            deadline=Deadline.after(self._timeout, self._clock),
            semantics=Semantics.RETRY,
        )


class NoAudit:
    """Stands for the audit service where none is configured (tests): nothing is ever on disk."""

    async def run(self) -> None:
        """Has nothing to do."""

    async def append(self, record: audit_pb2.Record) -> None:
        """See `AuditLink`."""
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "no audit service is configured")


def open_audit(
    target: str, settings: ServiceSettings, *, clock: Clock, rng: random.Random, timeout: float = 5.0
) -> AuditLink | NoAudit:
    """The link to the audit service at `target`; "" is none. The caller runs its `run`."""
    return AuditLink(target, settings, clock=clock, rng=rng, timeout=timeout) if target else NoAudit()
