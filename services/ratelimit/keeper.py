"""Keeps the ledger: limits from the registry into it, its changes into the journal, its expired leases out of it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from libs.gcra import Ledger, LimitSpec
from libs.registry import RegistrySnapshot
from libs.telemetry import get_logger
from services.ratelimit import metrics
from services.ratelimit.journal import Journal
from services.ratelimit.policy.recovery import Frame, fold, restore
from services.ratelimit.ports import Nanoseconds

log = get_logger(__name__)


class LedgerKeeper:
    """Background care of one ledger."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        journal: Journal | None,
        now: Nanoseconds,
        wall: Nanoseconds,
        flush_seconds: float,
        settled_retention_ns: int,
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._now = now
        self._wall = wall
        self._flush_seconds = flush_seconds
        self._retention_ns = settled_retention_ns
        # One thread: a write goes on when the flush that asked for it is cancelled, and the next must not overtake it.
        self._writer = ThreadPoolExecutor(1, "journal")
        self._limits: object = None

    async def recover(self) -> None:
        """Puts what the journal holds into the (empty) ledger. Call once, before serving.

        :raises OSError: the journal exists and cannot be read.
        """
        if self._journal is None:
            return
        frames = await asyncio.to_thread(self._journal.load)
        state = fold(frames)
        restore(
            self._ledger,
            state,
            now=self._now(),
            wall_now=self._wall(),
            settled_retention_ns=self._retention_ns,
        )
        log.info("state_recovered", frames=len(frames), scopes=len(state.scopes), leases=len(state.leases))

    def apply(self, snapshot: RegistrySnapshot) -> None:
        """Makes the snapshot's limits the limits in force; at once, consumed state stays."""
        if snapshot.limits is self._limits:
            return
        self._limits = snapshot.limits
        specs = {
            key: LimitSpec(limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
            for key, limits in snapshot.limits.items()
        }
        self._ledger.apply_limits(specs, self._now())
        metrics.LIMITS_REVISION.set(snapshot.revision)

    async def run(self) -> None:
        """Expires leases and writes the journal every `flush_seconds` until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(self._flush_seconds)
                metrics.EXPIRED.inc(self._ledger.expire(self._now()))
                metrics.LEASES.set(self._ledger.live_leases)
                await self.flush()
        finally:
            await self.flush()
            self._writer.shutdown(wait=False)

    async def flush(self, *, snapshot: bool = False) -> None:
        """Writes what changed since the last flush, off the event loop; with `snapshot` everything, in a new file.

        A write that fails is counted and logged; the next one is a snapshot, so nothing is missing after it.
        """
        if self._journal is None:
            return
        full = snapshot or self._journal.wants_snapshot
        changes = self._ledger.full_state(self._now()) if full else self._ledger.take_changes(self._now())
        if not full and not any(changes):
            return
        frame = Frame(self._wall(), full, changes)
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._journal.write, frame)
        except OSError as error:
            metrics.JOURNAL_FAILURES.inc()
            log.warning("journal_write_failed", error=error.strerror or type(error).__name__)
        else:
            metrics.JOURNAL_WRITES.inc()
