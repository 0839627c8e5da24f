"""`Watch`: the last changes, from which every watcher is served at its own pace, and streams of them."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, RegistryView, Store, WatchBatch, WatchEvent, keys
from libs.resources.codec import kind_of, located, redacted
from libs.resources.kind import Kind
from services.registry.listing import Listings, Matches, existing, exists_for

KEPT = 20_000
"""Events that are kept for watchers that come back: a fleet of 1,000 processes that restarts makes 2,000."""
KEPT_BYTES = 64_000_000
CHUNK = 500
CHUNK_BYTES = 1_000_000
"""Resources in one message, and their bytes, about: gRPC takes 16 MiB."""
BEHIND = 3.0
"""Seconds that a process may need to show what the store has: normally milliseconds."""
BOOKMARK = 8.0
"""Seconds between two signs of life on a stream without changes: less than gRPC's keepalive, or there were both."""


@dataclass(slots=True)
class _Entry:
    """A transaction's changes."""

    revision: int
    changed: list[tuple[Kind, pb.Resource]]
    deleted: list[tuple[Kind, pb.ResourceName]]
    made: dict[object, list[pb.WatchResponse]] = field(default_factory=dict)
    """What watchers of the same kinds are sent: many watch the same."""

    size: int = 0
    """Events."""
    bytes: int = 0
    """Of what was changed."""


class ChangeLog:
    """The last changes of a view."""

    def __init__(self, view: RegistryView, listings: Listings, *, kept: int = KEPT) -> None:
        self._view = view
        self._listings = listings
        self._kept = kept
        self._entries: deque[_Entry] = deque()
        self._events = self._bytes = 0
        self._oldest = 0
        self._reached = 0
        self._history = 0
        self._changed = asyncio.Event()
        self.ended = False
        """Watches end in order: their watchers go to another process."""
        view.on_batch(self._use)
        view.on_change(self._begin)

    @property
    def revision(self) -> int:
        """Up to which changes are known."""
        return self._view.revision

    @property
    def history(self) -> int:
        """Grows whenever what was told before does not lead to what comes: something in between is not known."""
        return self._history

    def end(self) -> None:
        """Ends all watches, and those to come."""
        self.ended = True
        self._wake()

    async def wait(self, seconds: float) -> bool:
        """Returns at the next change, or False when the time is over."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def behind(self, revision: int) -> list[_Entry]:
        """Changes after a revision, oldest first.

        :raises WeirError: REVISION_GONE: some are not kept any more.
        """
        if revision < self._oldest:
            raise gone(revision + 1, f"changes are kept from revision {self._oldest + 1} on")
        start = bisect.bisect_right(self._entries, revision, key=lambda entry: entry.revision)
        return list(islice(self._entries, start, None))

    def _begin(self, snapshot: RegistrySnapshot) -> None:
        if not self._oldest:
            self._oldest = snapshot.revision

    def _use(self, batch: WatchBatch) -> None:
        if batch.merged or batch.revision <= self._reached:
            # We were away for too long, or the store was restored to an earlier state: changes in between are not known
            # here, and to some watchers, who were with another process, they may be.
            self._entries.clear()
            self._events, self._bytes, self._oldest = 0, 0, batch.revision
            self._history += 1
        else:
            # A batch may hold several transactions, also of the same key.
            for revision, events in groupby(batch.events, key=lambda event: event.mod_revision):
                self._keep(self._entry(revision, events))
        self._reached = batch.revision
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _keep(self, entry: _Entry) -> None:
        if entry.size:
            self._entries.append(entry)
            self._events += entry.size
            self._bytes += entry.bytes
        while (self._events > self._kept or self._bytes > KEPT_BYTES) and len(self._entries) > 1:
            dropped = self._entries.popleft()
            self._events -= dropped.size
            self._bytes -= dropped.bytes
            self._oldest = dropped.revision

    def _entry(self, revision: int, events: Iterable[WatchEvent]) -> _Entry:
        entry = _Entry(revision, [], [])
        for event in events:
            found = located(event.key)
            if found is None:
                continue
            kind, name = found
            resource = self._listings.shown(kind, event, secrets=True) if event.value is not None else None
            if resource is not None:
                entry.changed.append((kind, resource))
            else:
                # Deleted, or unreadable: nobody has it.
                entry.deleted.append((kind, pb.ResourceName(kind=kind.name, name=name, revision=event.mod_revision)))
        entry.size = len(entry.changed) + len(entry.deleted)
        entry.bytes = sum(resource.ByteSize() for _, resource in entry.changed)
        return entry


class Watch:
    """One watcher's stream."""

    def __init__(
        self,
        log: ChangeLog,
        listings: Listings,
        kinds: Collection[Kind],
        *,
        grant: Grant,
        matches: Matches | None = None,
        still: Callable[[], object] = lambda: None,
    ) -> None:
        """:param grant: who watches; it sees what exists for it.

        :param matches: only these; None: all.

        :param still: raises when the watcher may watch no longer; asked whenever something is to be sent.
        """
        self._log = log
        self._listings = listings
        self._kinds = list(kinds)
        self._plurals = frozenset(kind.plural for kind in kinds)
        self._matches = matches
        self._grant = grant
        self._still = still

    async def responses(self, from_revision: int) -> AsyncIterator[pb.WatchResponse]:
        """What is there (for 0), then every change; bookmarks in between.

        :raises WeirError: REVISION_GONE: the watcher, or this process, fell too far behind.
        """
        clock = asyncio.get_running_loop().time
        sent, history, told = from_revision - 1, self._log.history, clock()
        if not from_revision:
            sent = self._log.revision
            held = self._listings.held(self._kinds, existing(self._grant, self._matches))
            shown = (self._listings.shown(kind, kv, secrets=True) for kind, kv in held)
            for response in _messages(sent, (self._visible(each) for each in shown if each is not None), []):
                yield response
        while not self._log.ended:
            self._still()
            if self._log.history != history:
                raise gone(sent + 1, "the registry was away from its store, or the store was restored")
            reached = self._log.revision
            for response in [each for entry in self._log.behind(sent) for each in self._of(entry)]:
                told = clock()
                yield response
            sent = max(sent, reached)
            if clock() - told >= BOOKMARK:
                # Also while others' kinds change all the time: who watches this one must know that it is watched.
                told = clock()
                yield pb.WatchResponse(revision=sent)
            if self._log.revision <= sent and self._log.history == history:
                await self._log.wait(told + BOOKMARK - clock())

    def _of(self, entry: _Entry) -> list[pb.WatchResponse]:
        if self._matches is not None:
            return self._made(entry, self._matches)
        shared = (self._plurals, self._grant.trusted, self._grant.tenants)
        if shared not in entry.made:
            entry.made[shared] = self._made(entry, lambda resource: True)
        return entry.made[shared]

    def _made(self, entry: _Entry, matches: Matches) -> list[pb.WatchResponse]:
        """What has not the labels (any more) is told as deleted: whoever saw it with them must forget it."""
        changed: list[pb.Resource] = []
        deleted = [name for kind, name in entry.deleted if kind.plural in self._plurals and self._knew(kind, name)]
        for kind, resource in entry.changed:
            if kind.plural not in self._plurals or not exists_for(self._grant, resource):
                continue
            if matches(resource):
                changed.append(self._visible(resource))
            else:
                metadata = resource.metadata
                deleted.append(pb.ResourceName(kind=kind.name, name=metadata.name, revision=metadata.revision))
        return list(_messages(entry.revision, changed, deleted)) if changed or deleted else []

    def _knew(self, kind: Kind, name: pb.ResourceName) -> bool:
        """Whether what is gone may have been there for the watcher: keys are called by chance, which tells nothing."""
        tenant = kind.tenant_of(name.name, None)
        return tenant is None or self._grant.knows(tenant)

    def _visible(self, resource: pb.Resource) -> pb.Resource:
        kind = kind_of(resource)
        return resource if kind is not None and self._grant.trusted in kind.trusted else redacted(resource)


async def require_known(store: Store, log: ChangeLog, from_revision: int) -> None:
    """Refuses to go on from a revision that the store has not reached: it is of another history.

    :raises WeirError: REVISION_GONE.
    """
    if from_revision <= log.revision + 1:
        return
    try:
        now = (await store.get_prefix(keys.FENCE)).revision
    except WeirError:
        # Nobody can tell: the watcher waits with us.
        return
    if from_revision > now + 1:
        raise gone(from_revision, f"the store is at {now}: it was restored, or this is another mesh")


async def require_reached(store: Store, log: ChangeLog, revision: int) -> None:
    """Returns once what is there holds at a revision that the watcher has seen elsewhere, or when the store itself has
    not reached it: it was restored.

    :raises WeirError: DEPENDENCY_UNAVAILABLE: this process is behind, or nobody can tell; another may not be.
    """
    if revision <= log.revision:
        return
    newest = await store.get_by_revision(keys.EVERYTHING, limit=1, keys_only=True)
    # What was written outside of our keys since is nothing to wait for, nor what the store lost when it was restored.
    revision = min(revision, max((kv.mod_revision for kv in newest.kvs), default=0))
    clock = asyncio.get_running_loop().time
    end = clock() + BEHIND
    while log.revision < revision:
        if not await log.wait(end - clock()):
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this registry is behind its store", retry_after=1.0)


def gone(revision: int, why: str) -> WeirError:
    """The refusal of a watch from a revision."""
    return WeirError(
        Reason.REVISION_GONE, f"no watch from revision {revision}: {why}; list again", limit="from_revision"
    )


def _messages(
    revision: int, changed: Iterable[pb.Resource], deleted: Sequence[pb.ResourceName]
) -> Iterator[pb.WatchResponse]:
    message, size = pb.WatchResponse(revision=revision), 0
    for resource in changed:
        size += resource.ByteSize()
        if message.resources and (size > CHUNK_BYTES or len(message.resources) == CHUNK):
            message.more = True
            yield message
            message, size = pb.WatchResponse(revision=revision), resource.ByteSize()
        message.resources.append(resource)
    message.deleted.extend(deleted)
    yield message
