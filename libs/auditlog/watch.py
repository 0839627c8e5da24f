"""Hands counted security events to the audit log, now and then and in the background."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from typing import Protocol

from weir.audit.v1 import audit_pb2

from libs.auditlog import metrics
from libs.auditlog.security import SecurityTally, Sight, record_of
from libs.clock import Clock
from libs.errors import WeirError
from libs.telemetry import get_logger

log = get_logger(__name__)
_WAITING = 1024
"""Records that wait for an audit service that is away, in memory: the oldest go first."""


class Appends(Protocol):
    """The audit log, or a link to it."""

    async def append(self, record: audit_pb2.Record) -> None:
        """Returns once the record is on disk.

        :raises WeirError: it is not.
        """


class SecurityWatch:
    """`note` counts and costs a dictionary's look-up; `run` writes what was counted every `interval` seconds."""

    def __init__(
        self, audit: Appends, *, source: str, clock: Clock, rng: random.Random, interval: float = 60.0
    ) -> None:
        """`source` is the service and instance, "edge-auth/edge-auth-0"."""
        self._audit = audit
        self._source = source
        self._clock = clock
        self._rng = rng
        self._interval = interval
        self._tally = SecurityTally()
        self._waiting: deque[audit_pb2.Record] = deque()

    def note(self, sight: Sight, times: int = 1) -> None:
        """Something was seen, so many times."""
        metrics.SECURITY[sight.kind].inc(times)
        self._tally.note(sight, self._clock.time(), times)

    def put(self, record: audit_pb2.Record) -> None:
        """Write this, too, the next time."""
        self._waiting.append(record)
        if len(self._waiting) > _WAITING:
            self._waiting.popleft()
            metrics.SECURITY_LOST.inc()

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted; what cannot be written waits for the next time."""
        for row in self._tally.take():
            record_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
            self.put(record_of(row, record_id=record_id, source=self._source))
        while self._waiting:
            try:
                await self._audit.append(self._waiting[0])
            except WeirError as error:
                log.warning("security_events_wait", records=len(self._waiting), reason=error.reason.name)
                return
            self._waiting.popleft()
