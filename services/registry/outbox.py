"""Audit records of changes, from the transaction that wrote them to the audit log's acknowledgement.

A change and its record are one transaction, so neither exists without the other. The record waits under
`keys.AUDIT_OUTBOX` until the audit log has it on disk; the log stores a record id once, so handing it over twice (a
crash before the deletion, two replicas) is harmless.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Protocol

from google.protobuf.message import DecodeError
from weir.audit.v1 import audit_pb2

from libs.errors import Reason, WeirError
from libs.registry import KeyValue, Store, keys
from libs.telemetry import get_logger
from services.registry import metrics

log = get_logger(__name__)
_RETRY = (0.2, 10.0)
"""First and longest pause in seconds while the audit log or the store is away."""
_AWAY = frozenset({Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED, Reason.DRAINING})


class AuditPort(Protocol):
    """Appends records to the audit log."""

    async def append(self, record: audit_pb2.Record) -> None:
        """Returns once the record is on disk; the same record id is stored once.

        :raises WeirError: DEPENDENCY_UNAVAILABLE or DEADLINE_EXCEEDED when the log is away; others when it refuses.
        """


class AuditOutbox:
    """Hands waiting records to the audit log while `run` runs."""

    def __init__(self, *, store: Store, port: AuditPort, limit: int, sweep: float, rng: Random) -> None:
        """:param limit: more waiting records than this refuse further changes.

        :param sweep: seconds between two looks for records that another replica left behind.
        """
        self._store = store
        self._port = port
        self._limit = limit
        self._sweep = sweep
        self._rng = rng
        self._wake = asyncio.Event()
        self._pending = 0
        self._empty = asyncio.Event()

    @property
    def pending(self) -> int:
        """Records waiting, as of the last look plus what was added since."""
        return self._pending

    def require_room(self) -> None:
        """Refuses when too many records wait: an unaudited past must not grow without bound.

        :raises WeirError: DEPENDENCY_UNAVAILABLE.
        """
        if self._pending >= self._limit:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "changes are refused until the audit log is back", retry_after=10.0
            )

    def notify(self) -> None:
        """A change was written."""
        self._pending += 1
        self._empty.clear()
        self._wake.set()

    async def wait_empty(self) -> None:
        """Returns once a look found nothing waiting."""
        await self._empty.wait()

    async def run(self) -> None:
        """Goes on until cancelled."""
        pause, longest = _RETRY
        while True:
            self._wake.clear()
            if await self._deliver():
                pause = _RETRY[0]
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._sweep)
            else:
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                pause = min(longest, pause * 2)

    async def _deliver(self) -> bool:
        """One look; False when records remain."""
        try:
            waiting = (await self._store.get_prefix(keys.AUDIT_OUTBOX)).kvs
            self._count(len(waiting))
            left = 0
            for kv in sorted(waiting, key=lambda kv: kv.mod_revision):
                if await self._append(kv):
                    await self._store.txn(deletes=[kv.key])
                else:
                    left += 1
        except WeirError as error:
            if error.reason not in _AWAY:
                raise
            return False
        self._count(left)
        return left == 0

    async def _append(self, kv: KeyValue) -> bool:
        """Whether the record is in the log.

        :raises WeirError: a reason of `_AWAY`: the rest can wait as well.
        """
        try:
            record = audit_pb2.Record.FromString(kv.value)
        except DecodeError:
            log.error("audit_record_unreadable", record=kv.key)
            return False
        # Only the store knows the revision of the transaction that wrote the record with the change.
        record.admin.revision = kv.mod_revision
        try:
            await self._port.append(record)
        except WeirError as error:
            metrics.audit_appends.labels(error.reason.name).inc()
            if error.reason in _AWAY:
                raise
            log.error("audit_record_refused", record=kv.key, reason=error.reason.name)
            return False
        metrics.audit_appends.labels("ok").inc()
        return True

    def _count(self, pending: int) -> None:
        self._pending = pending
        metrics.outbox_pending.set(pending)
        if not pending:
            self._empty.set()
