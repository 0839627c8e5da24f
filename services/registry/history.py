"""The history of changes: read by revision, and kept from growing without bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from random import Random

from google.protobuf.message import DecodeError
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import KeyValue, Listing, Store, keys
from libs.resources.codec import located
from libs.resources.kind import ROOT
from libs.telemetry import get_logger
from services.registry import metrics

log = get_logger(__name__)
_PAGE = (50, 1000)
"""Fewest and most entries of one read: most have some hundred bytes, those of an import a hundred kilobytes."""
_PAGE_BYTES = 4_000_000
"""Of one read, if the next entries are like the last ones; a message from etcd may have 64 MiB."""
_ANSWER_BYTES = 8_000_000
"""Of one answer: gRPC takes 16 MiB. Entries of large applies may be fewer than were asked for."""
_DELETES = 100
"""Of one transaction."""
MAX_LISTED = 1000
_LISTED = 50
UNREADABLE = "unreadable"


class History:
    """Reads entries from the store, newest first; `run` trims them."""

    def __init__(self, *, store: Store, limit: int, interval: float, rng: Random) -> None:
        """:param limit: entries that are kept; older ones are deleted.

        :param interval: seconds between two looks for what is too much.
        """
        self._store = store
        self._limit = limit
        self._interval = interval
        self._rng = rng

    async def entries(
        self, *, resource: str = "", limit: int = 0, before: int = 0, grant: Grant | None = None
    ) -> list[pb.HistoryEntry]:
        """The newest entries.

        :param grant: who asks; None: this service itself. Only changes of what exists for it are told.
        :param resource: only those that change it, or what is under it ("rollouts/").
        :param limit: 0 means 50; at most 1000.
        :param before: only those before this revision; 0 means all.
        :raises WeirError: DEPENDENCY_UNAVAILABLE.
        """
        found: list[pb.HistoryEntry] = []
        wanted, size = min(limit or _LISTED, MAX_LISTED), 0
        async for kv in self._walk(before=before):
            entry = _decode(kv)
            if grant is not None and grant.tenants:
                told = known_of(grant, entry.changes)
                del entry.changes[:]
                entry.changes.extend(told)
                if not told:
                    continue
            if not resource or any(_is_under(change.resource, resource) for change in entry.changes):
                found.append(entry)
                size += len(kv.value)
            if len(found) >= wanted or size > _ANSWER_BYTES:
                break
        return found

    async def differences(self, start: int, end: int, *, under: str = "") -> tuple[list[pb.ResourceChange], int]:
        """How the state at revision `end` (0: now) differs from that at `start`, and the revision that `end` was.

        :param under: as in `entries`.

        :raises WeirError: NOT_FOUND when the history does not reach back so far; INVALID_REQUEST for a revision that
            is yet to come; DEPENDENCY_UNAVAILABLE.
        """
        now = (await self._store.get_by_revision(keys.HISTORY, limit=1)).revision
        end = end or now
        if max(start, end) > now or min(start, end) < 1:
            raise WeirError(
                Reason.INVALID_REQUEST, f"revisions are between 1 and {now}, the present one", limit="revision"
            )
        low, high = sorted((start, end))
        steps: list[pb.ResourceChange] = []
        async for kv in self._walk(after=low, before=high + 1):
            steps.extend(step for step in _steps(kv) if not under or _is_under(step.resource, under))
        # Only now: what is trimmed while we read must not go unnoticed.
        oldest = await self._store.get_by_revision(keys.HISTORY, limit=1, newest_first=False, keys_only=True)
        if not oldest.kvs or oldest.kvs[0].mod_revision > low:
            reach = f"begins at revision {oldest.kvs[0].mod_revision}" if oldest.kvs else "is empty"
            raise WeirError(Reason.NOT_FOUND, f"the history {reach}; revision {low} is before it", limit="revision")
        made = fold(reversed(steps))
        return (made if start <= end else backwards(made)), end

    async def run(self) -> None:
        """Trims; goes on until cancelled. Several replicas may: deleting twice is harmless."""
        while True:
            try:
                await self.trim()
            except WeirError as error:
                if error.reason not in (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED):
                    raise
                log.info("history_not_trimmed", reason=error.reason.name)
            await asyncio.sleep(self._interval * self._rng.uniform(0.5, 1.0))

    async def trim(self) -> int:
        """Deletes what is beyond the limit, oldest first; returns how many it were.

        :raises WeirError: DEPENDENCY_UNAVAILABLE.
        """
        kept = await self._store.get_by_revision(keys.HISTORY, limit=self._limit, keys_only=True)
        metrics.history_entries.set(len(kept.kvs))
        deleted = 0
        if len(kept.kvs) < self._limit:
            return deleted
        while batch := await self._beyond(kept.kvs[-1].mod_revision):
            # The oldest go first, so that what is left is always the whole of what came after some revision.
            await self._store.txn(deletes=[kv.key for kv in batch.kvs])
            deleted += len(batch.kvs)
        return deleted

    async def _beyond(self, revision: int) -> Listing | None:
        batch = await self._store.get_by_revision(
            keys.HISTORY, limit=_DELETES, newest_first=False, before=revision, keys_only=True
        )
        return batch if batch.kvs else None

    async def _walk(self, *, after: int = 0, before: int = 0) -> AsyncIterator[KeyValue]:
        limit, most = _PAGE
        while True:
            page = await self._store.get_by_revision(keys.HISTORY, limit=limit, after=after, before=before)
            for kv in page.kvs:
                yield kv
            if len(page.kvs) < limit:
                return
            before = page.kvs[-1].mod_revision
            # Each read costs the store a look at all entries, so few large ones; but not too large ones.
            each = max(1, sum(len(kv.value) for kv in page.kvs) // limit)
            limit = max(_PAGE[0], min(most, 4 * limit, _PAGE_BYTES // each))


def _decode(kv: KeyValue) -> pb.HistoryEntry:
    try:
        entry = pb.HistoryEntry.FromString(kv.value)
    except DecodeError:
        # It is shown that there was one; a difference over it cannot be told.
        log.error("history_entry_unreadable", key=kv.key)
        entry = pb.HistoryEntry(id=kv.key.removeprefix(keys.HISTORY), action=UNREADABLE)
    entry.revision = kv.mod_revision
    return entry


def _steps(kv: KeyValue) -> list[pb.ResourceChange]:
    entry = _decode(kv)
    if entry.action == UNREADABLE:
        raise WeirError(Reason.INTERNAL, f"the history entry of revision {kv.mod_revision} is unreadable")
    # Within fold the oldest come first: what is collected newest first is turned around as a whole.
    return list(reversed(entry.changes))


def fold(steps: Iterable[pb.ResourceChange]) -> list[pb.ResourceChange]:
    """What many changes did together, by resource; what came back to what it was is left out.

    :param steps: oldest first.
    """
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for step in steps:
        first.setdefault(step.resource, step.before)
        last[step.resource] = step.after
    return [
        pb.ResourceChange(resource=name, before=first[name], after=last[name])
        for name in sorted(first)
        if first[name] != last[name]
    ]


def known_of(grant: Grant, changes: Iterable[pb.ResourceChange]) -> list[pb.ResourceChange]:
    """The changes of what exists for a caller: for one that is kept to tenants, only of what is theirs."""
    return [each for each in changes if not grant.tenants or grant.knows(_tenant_of(each))]


def _tenant_of(change: pb.ResourceChange) -> str:
    place = located(ROOT + change.resource)
    if place is None:
        return ""
    kind, name = place
    told = kind.tenant_of(name, None)
    if told is None:
        told = json.loads(change.after or change.before or "{}").get("spec", {}).get(kind.tenant, "")
    return str(told)


def backwards(changes: Iterable[pb.ResourceChange]) -> list[pb.ResourceChange]:
    """The way back."""
    return [pb.ResourceChange(resource=each.resource, before=each.after, after=each.before) for each in changes]


def _is_under(resource: str, name: str) -> bool:
    return resource == name or resource.startswith(name if name.endswith("/") else name + "/")
