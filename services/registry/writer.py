"""The one way to change the registry: validate against exactly the state that is changed, write, tell the audit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from google.protobuf.timestamp_pb2 import Timestamp
from weir.audit.v1 import audit_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Compare, Put, RegistrySnapshot, RegistryView, Store, keys
from services.registry.changes import Change, M, Plan
from services.registry.outbox import AuditOutbox

_ATTEMPTS = 10
"""Changes are rare; ten lost races in a row mean that something else is wrong."""
_CATCH_UP_SECONDS = 3.0
"""For the view to show what the store has: normally milliseconds."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[M]):
    """A change that holds."""

    message: M
    """The resource as stored; `revision` filled in where it has one."""
    revision: int
    """The store's revision from which it holds."""
    unchanged: bool
    """It was so already."""


class Writer:
    """Serialises changes over all replicas by a fence key that every change compares and rewrites."""

    def __init__(
        self,
        *,
        store: Store,
        view: RegistryView,
        outbox: AuditOutbox,
        source: str,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        """:param source: this process in audit records, "registry/registry-0"."""
        self._store = store
        self._view = view
        self._outbox = outbox
        self._source = source
        self._clock = clock
        self._new_id = new_id
        self._turn = asyncio.Lock()

    async def commit(self, *, actor: str, action: str, plan: Plan[M]) -> Committed[M]:
        """Carries out the plan once.

        :raises WeirError: whatever the plan raises; DEPENDENCY_UNAVAILABLE when the store is away (nothing changed, or
            the message says that it is unclear) or too many audit records wait; CONFLICT after too many lost races.
        """
        self._outbox.require_room()
        change_id = self._new_id()
        sent: Change[M] | None = None
        async with self._turn:
            for _ in range(_ATTEMPTS):
                fence = await self._store.get(keys.FENCE)
                fence_revision = fence.mod_revision if fence else 0
                snapshot = await self._snapshot_at(fence_revision)
                if sent is not None and fence is not None and fence.value == change_id.encode():
                    return await self._done(sent, fence_revision)
                change = plan(snapshot)
                if change.unchanged:
                    return Committed(change.message, snapshot.revision, True)
                try:
                    revision = await self._write(change, fence_revision, change_id, actor, action)
                except WeirError as error:
                    if error.reason is not Reason.DEPENDENCY_UNAVAILABLE or sent is not None:
                        raise
                    # Sent, not answered. A second attempt cannot double it: it compares the same fence.
                    sent = change
                    continue
                if revision:
                    return await self._done(change, revision)
        raise WeirError(Reason.CONFLICT, "too many changes at once; try again", retry_after=1.0)

    async def _snapshot_at(self, revision: int) -> RegistrySnapshot:
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                return await self._view.wait_until(lambda snapshot: snapshot.revision >= max(revision, 1))
        except TimeoutError:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "the registry has not caught up with its store", retry_after=1.0
            ) from None

    async def _write(self, change: Change[M], fence: int, change_id: str, actor: str, action: str) -> int:
        """The new revision, or 0 when somebody else was first."""
        key = keys.key_of(change.message)
        compares = [Compare(keys.FENCE, fence)]
        if change.current is not None:
            compares.append(Compare(key, change.current))
        record = self._record(change_id, actor, action, change.resource)
        result = await self._store.txn(
            compares=compares,
            puts=[
                Put(key, keys.encode(change.message)),
                Put(keys.FENCE, change_id.encode()),
                Put(keys.AUDIT_OUTBOX + change_id, record.SerializeToString()),
            ],
        )
        return result.revision if result.succeeded else 0

    def _record(self, change_id: str, actor: str, action: str, resource: str) -> audit_pb2.Record:
        stamp = Timestamp()
        stamp.FromNanoseconds(int(self._clock.time() * 1e9))
        event = audit_pb2.AdminEvent(actor=actor, action=action, resource=resource)
        return audit_pb2.Record(id=change_id, time=stamp, source=self._source, admin=event)

    async def _done(self, change: Change[M], revision: int) -> Committed[M]:
        self._outbox.notify()
        # So that the caller reads its own write here; a view that lags does not undo what was written.
        with contextlib.suppress(WeirError):
            await self._snapshot_at(revision)
        message = type(change.message)()
        message.CopyFrom(change.message)
        if "revision" in message.DESCRIPTOR.fields_by_name:
            message.revision = revision  # type: ignore[attr-defined]
        return Committed(message, revision, False)
