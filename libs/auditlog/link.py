"""Streams to the audit service for those who have no other use for one."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.auditlog.client import AuditWriter
from libs.clock import Clock
from libs.config import ServiceSettings
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.journal import Journal
from libs.mux import Dialer, MuxClient, Semantics


class AuditLink:
    """Hands over single records and waits until each is on the service's disk, over one stream, which `run` keeps."""

    def __init__(
        self, target: str, settings: ServiceSettings, *, clock: Clock, rng: random.Random, timeout: float = 5.0
    ) -> None:
        """`timeout` is how many seconds one record's acknowledgement may take."""
        self._channel, self._client = _stream(target, settings, clock=clock, rng=rng)
        self._clock = clock
        self._timeout = timeout

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


class JournaledLink:
    """Puts records into a journal in a folder, and sends them from there: what was taken is not lost with the process.
    `run` keeps both."""

    def __init__(
        self, target: str, settings: ServiceSettings, directory: Path, *, clock: Clock, rng: random.Random
    ) -> None:
        """:raises JournalLockedError: another process has the folder.
        :raises OSError: it cannot be read."""
        self._channel, self._client = _stream(target, settings, clock=clock, rng=rng)
        journal = Journal(directory, rng=random.SystemRandom(), max_bytes=8 << 20, segment_bytes=1 << 20, slots=1)
        source = f"{settings.service}/{settings.instance}"
        self._writer = AuditWriter(self._client, journal, source=source, clock=clock)

    async def run(self) -> None:
        """Goes on until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._client.run())
                group.create_task(self._writer.run())
        finally:
            await self._channel.close()

    @property
    def full(self) -> bool:
        """A further record may be lost."""
        return self._writer.full

    async def append(self, record: audit_pb2.Record) -> None:
        """Returns once the record is in the journal.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when there is no room for it.
        """
        if self.full:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit journal is full")
        self.write(record)

    def write(self, record: audit_pb2.Record) -> None:
        """Takes it at once; one for which there is no room is counted and logged."""
        self._writer.write(record)


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


def open_journaled(
    target: str, settings: ServiceSettings, *, clock: Clock, rng: random.Random
) -> JournaledLink | AuditLink | NoAudit:
    """Likewise with a journal in `state_dir`, where there is one.

    :raises JournalLockedError: another process has the folder.
    :raises OSError: it cannot be read.
    """
    if not target or not settings.state_dir:
        return open_audit(target, settings, clock=clock, rng=rng)
    return JournaledLink(target, settings, Path(settings.state_dir) / "audit-journal", clock=clock, rng=rng)


def _stream(
    target: str, settings: ServiceSettings, *, clock: Clock, rng: random.Random
) -> tuple[grpc.aio.Channel, MuxClient]:
    dialer = Dialer(settings, clock, rng)
    channel = dialer.channel(target, "audit")
    stub = audit_pb2_grpc.AuditServiceStub(channel)
    return channel, dialer.client(lambda: stub.Session(wait_for_ready=True), audit_pb2)
