"""Carries out changes: one transaction of resources, fence, audit record and history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from google.protobuf.timestamp_pb2 import Timestamp
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.changes.change import MAX_WRITES, Change, M, Plan
from libs.changes.history import history_key, recorded, resource_of
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Compare, Put, RegistrySnapshot, RegistryView, Store, keys
from libs.resources.codec import encode, located, read
from libs.resources.kinds import BY_PLURAL

_ATTEMPTS = 10
"""Changes are rare; ten lost races in a row mean that something else is wrong."""
_CATCH_UP_SECONDS = 3.0
"""For the view to show what the store has: normally milliseconds."""
_UNCLEAR = "the registry's store does not answer; it is unclear whether this was changed"
_CREDENTIALS = tuple(BY_PLURAL[plural].prefix for plural in ("keys", "tenants"))
_NAMED = 3
"""Resources that an audit record names; of more it tells how many there are."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[M]):
    """A change that holds, or, of a dry run, would."""

    message: M
    """The plan's message; a `revision` of 0 in it is filled in once it is written."""
    revision: int
    """The store's revision from which it holds; of what changed nothing and of a dry run, the one it was decided by."""
    unchanged: bool
    """It was so already."""
    changes: tuple[pb.ResourceChange, ...] = ()
    """What it changed, as the history tells it."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """What stays the same over the attempts at one change."""

    id: str
    nanoseconds: int
    actor: str
    action: str
    reason: str
    guards: tuple[Compare, ...]

    @property
    def history_key(self) -> str:
        return history_key(self.nanoseconds, self.id)

    @property
    def at(self) -> Timestamp:
        stamp = Timestamp()
        stamp.FromNanoseconds(self.nanoseconds)
        return stamp


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One write beside what it replaces."""

    key: str
    before: pb.Resource | None
    after: pb.Resource | None
    revision: int


class Writer:
    """Serialises changes over all processes by a fence key that every change compares and rewrites."""

    def __init__(
        self,
        *,
        store: Store,
        view: RegistryView,
        source: str,
        clock: Clock,
        new_id: Callable[[], str],
        room: Callable[[], None] | None = None,
        written: Callable[[], None] | None = None,
    ) -> None:
        """:param source: this process in audit records, "registry/registry-0".

        :param new_id: ids of changes, unique over all processes.
        :param room: raises `WeirError` while no more audit records may wait; None never refuses, for changes that
            must not wait for the audit log, such as taking a bad version out.
        :param written: told of every change that was written, to hurry its audit record on its way.
        """
        self._store = store
        self._view = view
        self._source = source
        self._clock = clock
        self._new_id = new_id
        self._room = room
        self._written = written
        self._turn = asyncio.Lock()

    async def commit(
        self,
        *,
        actor: str,
        action: str,
        plan: Plan[M],
        reason: str = "",
        dry_run: bool = False,
        guards: Sequence[Compare] = (),
    ) -> Committed[M]:
        """Carries out the plan once, however often answers get lost on the way.

        :param reason: why, for the audit log and the history.
        :param dry_run: plan against the present state and write nothing.
        :param guards: what must hold beside the plan, such as being the leader; at most five.
        :raises WeirError: whatever the plan raises; CONFLICT with the limit "guard" at once when a guard does not
            hold (nothing was written), CONFLICT after too many lost races, INVALID_REQUEST for more than `MAX_WRITES`
            resources; DEPENDENCY_UNAVAILABLE when the store is away (nothing changed, or the message says that it is
            unclear) or there is no room.
        """
        if self._room is not None and not dry_run:
            self._room()
        draft = _Draft(self._new_id(), int(self._clock.time() * 1e9), actor, action, reason, tuple(guards))
        sent: Committed[M] | None = None
        async with self._turn:
            for _ in range(_ATTEMPTS):
                try:
                    if sent is not None and (revision := await self._revision_of(draft)):
                        return await self._done(sent, revision)
                    fence = await self._store.get(keys.FENCE)
                    fence_revision = fence.mod_revision if fence else 0
                    snapshot = await self._snapshot_at(fence_revision)
                    change = plan(snapshot)
                    # Nothing was awaited since the snapshot: the view still shows what the plan saw.
                    writes = self._prepared(change)
                    differences = _differences(writes)
                    planned = Committed(change.message, snapshot.revision, not change.writes, differences)
                    if planned.unchanged or dry_run:
                        return planned
                    try:
                        revision = await self._write(draft, writes, differences, fence_revision)
                    except WeirError as error:
                        if sent is not None or error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                            raise
                        # Sent, not answered. A second attempt cannot double it: it compares the same fence.
                        sent = planned
                        continue
                    if revision:
                        return await self._done(planned, revision)
                    await self._check_guards(draft.guards)
                except WeirError as error:
                    if sent is None:
                        raise
                    if error.reason is Reason.DEPENDENCY_UNAVAILABLE:
                        raise WeirError(error.reason, _UNCLEAR, retry_after=1.0) from error
                    # Refused, perhaps because the first attempt came through after all.
                    if not (revision := await self._revision_of(draft)):
                        raise
                    return await self._done(sent, revision)
        raise WeirError(Reason.CONFLICT, "too many changes at once; try again", retry_after=1.0)

    async def _revision_of(self, draft: _Draft) -> int:
        """The revision at which the draft was written, if it was; 0: it was not, so far.

        :raises WeirError: DEPENDENCY_UNAVAILABLE, saying that it is unclear.
        """
        try:
            entry = await self._store.get(draft.history_key)
        except WeirError as error:
            raise WeirError(error.reason, _UNCLEAR, retry_after=1.0) from error
        return entry.mod_revision if entry is not None else 0

    async def _snapshot_at(self, revision: int) -> RegistrySnapshot:
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                return await self._view.wait_until(lambda snapshot: snapshot.revision >= max(revision, 1))
        except TimeoutError:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "the registry has not caught up with its store", retry_after=1.0
            ) from None

    def _prepared(self, change: Change[M]) -> list[_Prepared]:
        """The change's writes beside what they replace, which nothing was awaited since the plan saw it."""
        if len(change.writes) > MAX_WRITES:
            raise WeirError(
                Reason.INVALID_REQUEST,
                f"this changes {len(change.writes)} resources at once; one transaction takes {MAX_WRITES}",
                limit="writes",
            )
        made = []
        for write in change.writes:
            stored = self._view.stored(write.key)
            place = located(write.key)
            # None also when it cannot be read: the history cannot tell what it was.
            before = read(*place, stored.value, 0) if stored is not None and place is not None else None
            after = write.resource
            if after is not None and before is not None and write.keep:
                kept = pb.Metadata(labels=before.metadata.labels, owner=before.metadata.owner)
                after = pb.Resource()
                after.CopyFrom(write.resource)  # type: ignore[arg-type]
                after.metadata.MergeFrom(kept)
            made.append(_Prepared(write.key, before, after, stored.mod_revision if stored else 0))
        return made

    async def _write(
        self, draft: _Draft, writes: Sequence[_Prepared], differences: Sequence[pb.ResourceChange], fence: int
    ) -> int:
        """The new revision, or 0 when somebody else was first or a guard does not hold."""
        entry = _history_entry(draft, differences)
        result = await self._store.txn(
            compares=[
                Compare(keys.FENCE, fence),
                *draft.guards,
                *(Compare(write.key, write.revision) for write in writes),
            ],
            puts=[
                *(Put(write.key, encode(write.after)) for write in writes if write.after is not None),
                Put(keys.FENCE, draft.id.encode()),
                *([Put(keys.EPOCH, draft.id.encode())] if any(map(_may_narrow, writes)) else []),
                Put(keys.AUDIT_OUTBOX + draft.id, self._audit_record(draft, differences).SerializeToString()),
                Put(draft.history_key, entry.SerializeToString()),
            ],
            deletes=[write.key for write in writes if write.after is None],
        )
        return result.revision if result.succeeded else 0

    def _audit_record(self, draft: _Draft, differences: Sequence[pb.ResourceChange]) -> audit_pb2.Record:
        names = [each.resource for each in differences]
        resource = ", ".join(names) if len(names) <= _NAMED else f"{names[0]} and {len(names) - 1} more"
        event = audit_pb2.AdminEvent(actor=draft.actor, action=draft.action, resource=resource, reason=draft.reason)
        return audit_pb2.Record(id=draft.id, time=draft.at, source=self._source, admin=event)

    async def _check_guards(self, guards: Sequence[Compare]) -> None:
        """After a transaction that did not hold: whether a guard was why.

        A guard that held again by now would be compared again with the next attempt.
        """
        for guard in guards:
            now = await self._store.get(guard.key)
            if (now.mod_revision if now else 0) != guard.mod_revision:
                raise WeirError(Reason.CONFLICT, f"{guard.key} is not what it was when this was decided", limit="guard")

    async def _done(self, planned: Committed[M], revision: int) -> Committed[M]:
        if self._written is not None:
            self._written()
        # So that the caller reads its own write here; a view that lags does not undo what was written.
        with contextlib.suppress(WeirError):
            await self._snapshot_at(revision)
        message = type(planned.message)()
        message.CopyFrom(planned.message)
        if getattr(message, "revision", None) == 0:
            message.revision = revision  # type: ignore[attr-defined]
        return Committed(message, revision, False, planned.changes)


def _may_narrow(write: _Prepared) -> bool:
    """Whether somebody's credentials may be worth less: a key, or a tenant, is no longer what it was."""
    return bool(write.revision) and write.key.startswith(_CREDENTIALS)


def _history_entry(draft: _Draft, differences: Sequence[pb.ResourceChange]) -> pb.HistoryEntry:
    return pb.HistoryEntry(
        id=draft.id, at=draft.at, actor=draft.actor, action=draft.action, reason=draft.reason, changes=differences
    )


def _differences(writes: Sequence[_Prepared]) -> tuple[pb.ResourceChange, ...]:
    return tuple(
        pb.ResourceChange(resource=resource_of(write.key), before=recorded(write.before), after=recorded(write.after))
        for write in writes
    )
