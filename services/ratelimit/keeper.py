"""Keeps the ledger: its decisions to the other replicas and into the journal, its expired leases out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from libs.quota import Cursor, Replica
from libs.quota.settled import Charge, Key
from libs.telemetry import get_logger
from services.ratelimit import metrics
from services.ratelimit.journal import Journal
from services.ratelimit.pauses import uncollected
from services.ratelimit.peers import Peers
from services.ratelimit.policy.recovery import Frame, restore
from services.ratelimit.ports import Nanoseconds

log = get_logger(__name__)
_BATCHES = 8
"""Of decisions, in one frame of the journal."""


class LedgerKeeper:
    """Background care of one replica.

    :param sweep: ends the leases of callers that are gone; returns how many.
    :param lapsed: makes records of leases that ended by themselves and that nobody has settled since; says of which.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        peers: Peers,
        journal: Journal | None,
        sweep: Callable[[], int],
        now: Nanoseconds,
        wall: Nanoseconds,
        flush_seconds: float,
        replicate_seconds: float,
        lapsed: Callable[[Sequence[tuple[Key, Charge]]], Iterable[Key]] = lambda _: (),
    ) -> None:
        self._replica = replica
        self._peers = peers
        self._journal = journal
        self._sweep = sweep
        self._lapsed = lapsed
        self._now = now
        self._wall = wall
        self._flush_seconds = flush_seconds
        self._replicate_seconds = replicate_seconds
        # One thread: a write goes on when the flush that asked for it is cancelled, and the next must not overtake it.
        self._writer = ThreadPoolExecutor(1, "journal")
        self._timer: asyncio.TimerHandle | None = None
        self.joined = False
        """What other replicas know is known here, too: what a former life's journal does not say to be settled or
        recorded may be by now."""

    async def recover(self) -> None:
        """Puts what the journal holds into the (empty) ledger. Call once, before serving.

        :raises OSError: the journal exists and cannot be read.
        """
        if self._journal is None:
            return
        frames = await asyncio.to_thread(self._journal.load)
        restore(self._replica, frames, now=self._now(), wall_now=self._wall())
        log.info("state_recovered", frames=len(frames), leases=self._replica.ledger.live_leases)

    def decided(self) -> None:
        """Something was decided: the others hear of it within `replicate_seconds`."""
        if self._timer is None and self._peers.others:
            self._timer = asyncio.get_running_loop().call_later(self._replicate_seconds, self.publish)

    def publish(self) -> None:
        """Tells the others what was decided, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        logged = self._replica.flush(self._now())
        if logged is not None:
            self._peers.send(logged)

    async def run(self) -> None:
        """Every `flush_seconds` until cancelled, ends leases, reminds replicas of what they missed and writes the
        journal; and writes once more then."""
        try:
            while True:
                await asyncio.sleep(self._flush_seconds)
                ledger = self._replica.ledger
                metrics.EXPIRED.inc(ledger.expire(self._now()))
                metrics.HOLDER_GONE.inc(self._sweep())
                if self.joined:
                    ledger.recorded(self._lapsed(ledger.forget(self._now())))
                metrics.LEASES.set(ledger.live_leases)
                self._peers.remind()
                await self.flush()
        finally:
            await self.flush()
            self._writer.shutdown(wait=False)

    async def flush(self, *, snapshot: bool = False) -> None:
        """Writes what was decided since the last flush, off the event loop; with `snapshot`, or when it is time, then
        all that is known, in a new file, a piece at a time.

        A write that fails is counted and logged; then a snapshot is written next, so nothing is missing after it.
        """
        self.publish()
        if self._journal is None:
            return
        try:
            await self._write_log(self._journal)
            if snapshot or self._journal.wants_snapshot:
                await self._write_snapshot(self._journal)
        except OSError as error:
            metrics.JOURNAL_FAILURES.inc()
            log.warning("journal_write_failed", error=error.strerror or type(error).__name__)
        else:
            metrics.JOURNAL_WRITES.inc()

    async def _write_log(self, journal: Journal) -> None:
        entries, at = self._replica.take_log(), self._wall()
        if entries:
            # Short frames: while one is made into bytes, the event loop waits.
            parts = [entries[start : start + _BATCHES] for start in range(0, len(entries), _BATCHES)]
            await self._run(journal.write, [Frame(at, log=part) for part in parts])

    async def _write_snapshot(self, journal: Journal) -> None:
        await self._run(journal.begin)
        cursor: Cursor | None = Cursor()
        while cursor is not None:
            await self._write_log(journal)
            self.publish()  # what is in a piece is told to nobody again
            with uncollected():
                piece = self._replica.piece(cursor, self._now())
            await self._run(journal.add, Frame(self._wall(), piece))
            cursor = piece.next
        await self._write_log(journal)
        await self._run(journal.commit)

    async def _run(self, write: Callable[..., None], *args: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, write, *args)
