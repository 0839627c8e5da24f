"""Keeps the ledger: its decisions to the other replicas and into the journal, its expired leases out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from libs.quota import Replica
from libs.telemetry import get_logger
from services.ratelimit import metrics
from services.ratelimit.journal import Journal
from services.ratelimit.pauses import uncollected
from services.ratelimit.peers import Peers
from services.ratelimit.policy.recovery import Frame, restore
from services.ratelimit.ports import Nanoseconds

log = get_logger(__name__)


class LedgerKeeper:
    """Background care of one replica.

    :param sweep: ends the leases of callers that are gone; returns how many.
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
    ) -> None:
        self._replica = replica
        self._peers = peers
        self._journal = journal
        self._sweep = sweep
        self._now = now
        self._wall = wall
        self._flush_seconds = flush_seconds
        self._replicate_seconds = replicate_seconds
        # One thread: a write goes on when the flush that asked for it is cancelled, and the next must not overtake it.
        self._writer = ThreadPoolExecutor(1, "journal")
        self._timer: asyncio.TimerHandle | None = None

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
                metrics.LEASES.set(ledger.live_leases)
                self._peers.remind()
                await self.flush()
        finally:
            await self.flush()
            self._writer.shutdown(wait=False)

    async def flush(self, *, snapshot: bool = False) -> None:
        """Writes what was decided since the last flush, off the event loop; with `snapshot` everything, in a new file.

        A write that fails is counted and logged; the next one is a snapshot, so nothing is missing after it.
        """
        self.publish()
        if self._journal is None:
            return
        entries = self._replica.take_log()
        if snapshot or self._journal.wants_snapshot:
            with uncollected():
                frame = Frame(self._wall(), self._replica.state(self._now()))
        elif entries:
            frame = Frame(self._wall(), None, entries)
        else:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._journal.write, frame)
        except OSError as error:
            metrics.JOURNAL_FAILURES.inc()
            log.warning("journal_write_failed", error=error.strerror or type(error).__name__)
        else:
            metrics.JOURNAL_WRITES.inc()
