"""Checkpoints kept where whoever has the log's disk cannot write: in etcd, and in a bucket if there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from libs.artifacts import BlobError, BlobStore
from libs.auditlog import AuditFiles
from libs.auditlog.anchoring import Judgement, Reading, judge
from libs.auditlog.chain import decode_checkpoint
from libs.auditlog.keys import Verifier
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Compare, Put, Store
from libs.registry.keys import AUDIT_CHECKPOINTS
from libs.telemetry import get_logger
from services.audit import metrics

log = get_logger(__name__)
BUCKET = "audit-anchors/"
"""{instance}/{10^12 - number} → a checkpoint's line: the newest is the first by name, and none is written twice."""
_NUMBERS = 10**12
OnThread = Callable[[Callable[[], Judgement]], Awaitable[Judgement]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the places said, as of one look."""

    judgement: Judgement
    revision: int
    """Of the anchor in etcd; 0 when there is none."""
    given: bytes
    """The line that the bucket was given last, as etcd says."""
    asked: bool
    """etcd answered."""
    number: int
    """Of the newest anchor in the bucket; 0 when there is none, -1 when it was not asked."""


class Anchors:
    """Compares the log with its anchors, and moves them on while nothing is wrong."""

    def __init__(
        self,
        store: Store,
        bucket: BlobStore | None,
        files: AuditFiles,
        instance: str,
        *,
        verify: Verifier,
        on_thread: OnThread,
        clock: Clock,
        bucket_seconds: float,
    ) -> None:
        """`on_thread` runs what reads the log in the thread that owns it. `bucket_seconds` is how often the bucket gets
        an anchor: it keeps each of them."""
        self._store = store
        self._bucket = bucket
        self._files = files
        self._instance = instance
        self._verify = verify
        self._on_thread = on_thread
        self._clock = clock
        self._bucket_seconds = bucket_seconds
        self._bucket_next = clock.monotonic()
        self._proven: dict[int, bytes] = {}
        self.oldest = 0
        """The record that the oldest of the newest anchors is of: no record behind it may go."""

    async def look(self) -> Seen:
        """Ask every place, and compare the log with what they say. A place that is away is a note, not a fault."""
        etcd, revision = await self._read_etcd()
        bucket, number = await self._read_bucket()
        judgement = await self._on_thread(
            lambda: judge(etcd, bucket, count=self._files.count, hash_at=self._hash_at, verify=self._verify)
        )
        given = etcd.lines[1] if etcd.lines and len(etcd.lines) > 1 else b""
        return Seen(judgement, revision, given, etcd.lines is not None, number)

    async def advance(self) -> Judgement:
        """Look, and if nothing is wrong put the newest checkpoint where the last one was."""
        seen = await self.look()
        if not seen.judgement.faults and seen.asked:
            due = self._clock.monotonic() >= self._bucket_next
            try:
                await self._put(seen, to_bucket=due)
            except WeirError as error:
                metrics.ANCHOR_FAILURES.inc()
                log.warning("audit_anchor_failed", reason=error.message)
        return seen.judgement

    async def replace(self, seen: Seen) -> None:
        """Put the newest checkpoint over the anchors that were `seen`, whatever they say.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when a place is away; CONFLICT when an anchor is not what was seen.
        """
        if not seen.asked or (self._bucket is not None and seen.number < 0):
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "an anchor cannot be asked now", retry_after=5.0)
        await self._put(seen, to_bucket=True)

    async def _put(self, seen: Seen, *, to_bucket: bool) -> None:
        line, given = self._files.checkpoint_line, seen.given
        if self._bucket is not None and to_bucket and seen.number >= 0:
            name = f"{BUCKET}{self._instance}/{_NUMBERS - seen.number - 1:013d}"
            try:
                if not await self._bucket.keep(name, line):
                    raise WeirError(Reason.CONFLICT, "somebody else puts anchors into the bucket")
            except BlobError as error:
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, str(error)) from error
            self._bucket_next = self._clock.monotonic() + self._bucket_seconds
            given = line
        key = AUDIT_CHECKPOINTS + self._instance
        done = await self._store.txn(compares=[Compare(key, seen.revision)], puts=[Put(key, line + given)])
        if not done.succeeded:
            raise WeirError(Reason.CONFLICT, "somebody else writes the anchor in etcd")
        count = decode_checkpoint(line, self._verify).count
        metrics.ANCHORED.set(count)
        known = [line for line in (given,) if self._bucket is not None and line]
        self.oldest = min([count, *(decode_checkpoint(each, self._verify).count for each in known)])

    def _hash_at(self, count: int) -> bytes:
        """What was proven once stays so: the head grew from there in this process's hands."""
        if count not in self._proven:
            if len(self._proven) > 16:
                self._proven.clear()
            self._proven[count] = self._files.hash_at(count)
        return self._proven[count]

    async def _read_etcd(self) -> tuple[Reading, int]:
        try:
            found = await self._store.get(AUDIT_CHECKPOINTS + self._instance)
        except WeirError as error:
            log.warning("audit_anchor_unread", place="etcd", reason=error.message)
            return Reading("etcd", None), 0
        if found is None:
            return Reading("etcd", ()), 0
        return Reading("etcd", tuple(found.value.splitlines(keepends=True)) or (b"",)), found.mod_revision

    async def _read_bucket(self) -> tuple[Reading | None, int]:
        if self._bucket is None:
            return None, -1
        try:
            found = await self._bucket.first_kept(f"{BUCKET}{self._instance}/")
        except BlobError as error:
            log.warning("audit_anchor_unread", place="bucket", reason=str(error))
            return Reading("the bucket", None), -1
        if found is None:
            return Reading("the bucket", ()), 0
        name, content = found
        digits = name.rpartition("/")[2]
        number = _NUMBERS - int(digits) if digits.isdecimal() else 0
        return Reading("the bucket", (content,)), number


async def keep_anchored(anchors: Anchors, told: Callable[[Judgement], None], *, interval: float) -> None:
    """Move the anchors on every `interval` seconds until cancelled, and tell of every look."""
    while True:
        told(await anchors.advance())
        await asyncio.sleep(interval)
