"""Outlier ejection: a worker that fails its requests gets none for a while.

    in use ── `failures` in a row, or a rate `margin` above the others' ──▶ ejected for `seconds`, doubling
       ▲                                                                        │ its time is over
       └── `probes` successes ── half open: `probes` requests at a time ◀───────┘
                                   └── one failure ──▶ ejected again, for longer

Only failures through the worker's fault count, which whoever reports them must tell from client errors, cancels and
deadlines: those are no outcomes here. Nor is what becomes of requests that were granted before the last ejection, be it
while the worker is out, half open or in use again: that was judged with the ejection, and only probes say whether the
worker is well since. At most `share` of the workers are out at once (a pool of two or more may always
lose one), never the last that is in use: when all fail, the fault lies elsewhere, and a pool that serves some is better
than one that serves none. That holds for each version which the worker serves. When others leave or drain, so that too
many are out, those come back half open that would be next.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from services.admission.policy.limits import Ejection

_FORGIVEN = 10.0  # times its length, after an ejection: the next one starts short again
_Room = tuple[int | None, float]
_FREE: _Room = (None, math.inf)


@dataclass(slots=True)
class _Record:
    streak: int = 0  # failures in a row
    good: float = 0.0  # outcomes, each fading with time
    bad: float = 0.0
    at: float = 0.0  # of the fading
    ejections: int = 0  # so far
    until: float = 0.0  # ejected until then
    length: float = 0.0  # of the last ejection
    watched: bool = False  # ejected, or half open
    probing: int = 0  # requests under way since it is half open
    passed: int = 0  # of which succeeded

    def fade(self, now: float, window: float) -> None:
        factor = math.exp(-max(0.0, now - self.at) / window)
        self.good *= factor
        self.bad *= factor
        self.at = now


class Outliers:
    """The standing of one pool's workers."""

    def __init__(self, limits: Ejection) -> None:
        self._limits = limits
        self._records: dict[str, _Record] = {}
        self._now = 0.0  # the latest time that was told

    def room(self, worker: str, now: float) -> tuple[int | None, float]:
        """How many more requests the worker may get by its standing (None: any number), and until when that holds if
        nothing is told meanwhile."""
        self._now = max(self._now, now)
        record = self._records.get(worker)
        if record is None or not record.watched:
            return _FREE
        if now < record.until:
            return 0, record.until
        return max(0, self._limits.probes - record.probing), math.inf

    def ejected(self, worker: str, now: float) -> bool:
        """Is the worker out now?"""
        record = self._records.get(worker)
        return record is not None and record.watched and now < record.until

    def watched(self, worker: str) -> bool:
        """Is it out, or on probation?"""
        record = self._records.get(worker)
        return record is not None and record.watched

    def granted(self, worker: str, now: float) -> bool:
        """The worker got a request; True when that is a probe, whose end `probed` must be told."""
        record = self._records.get(worker)
        if record is None or not record.watched or now < record.until:
            return False
        record.probing += 1
        return True

    def ejections(self, worker: str) -> int:
        """How many it had so far: `probed` and `outcome` want to know of a request how many there were at its grant."""
        record = self._records.get(worker)
        return 0 if record is None else record.ejections

    def probed(self, worker: str, ejections: int) -> None:
        """A probe is over, whatever became of it."""
        record = self._records.get(worker)
        if record is not None and record.probing and ejections == record.ejections:
            record.probing -= 1

    def outcome(
        self,
        worker: str,
        now: float,
        *,
        failed: bool,
        workers: Collection[str],
        also: Iterable[Collection[str]] = (),
        ejections: int | None = None,
    ) -> bool:
        """A request on the worker succeeded or failed through its fault; `workers` are those in use that do the same
        work, `also` those that do each other work of this worker's, `ejections` those before its grant (None: all).
        True when the worker is ejected for it."""
        limits = self._limits
        self._now = max(self._now, now)
        record = self._records.setdefault(worker, _Record(at=now))
        if ejections is not None and ejections != record.ejections:
            return False
        record.fade(now, limits.window)
        if not failed:
            record.good += 1.0
            record.streak = 0
            if record.watched and now >= record.until:
                record.passed += 1
                if record.passed >= limits.probes:
                    record.watched = False
                    record.bad = 0.0  # what it was ejected for is settled
            return False
        record.bad += 1.0
        record.streak += 1
        if record.watched and now < record.until:
            return False
        half_open = record.watched
        if not (half_open or record.streak >= limits.failures or self._stands_out(worker, now, workers)):
            return False
        if not all(self._may_lose(worker, now, each) for each in (workers, *also)):
            return False
        self._eject(record, now)
        return True

    def forget(self, worker: str) -> None:
        """The worker is gone; one that comes back under its name starts anew."""
        self._records.pop(worker, None)

    def _stands_out(self, worker: str, now: float, workers: Collection[str]) -> bool:
        own = self._records[worker]
        if own.good + own.bad < self._limits.min_outcomes:
            return False
        good = bad = 0.0
        for name in workers:
            record = self._records.get(name)
            if record is not None and name != worker:
                record.fade(now, self._limits.window)
                good, bad = good + record.good, bad + record.bad
        others = bad / (good + bad) if good + bad else 0.0
        return own.bad / (own.good + own.bad) >= others + self._limits.margin

    def left(self, workers: Collection[str]) -> list[str]:
        """Some worker is gone and these remain; returns those that come back because too many of them are out."""
        out = [name for name in workers if self.ejected(name, self._now)]
        out.sort(key=lambda name: (self._records[name].until, name))
        back = out[: max(0, len(out) - self._most(len(workers)))]
        for name in back:
            self._records[name].until = self._now
        return back

    def _may_lose(self, worker: str, now: float, workers: Collection[str]) -> bool:
        out = sum(self.ejected(name, now) for name in workers if name != worker)
        return out < self._most(len(workers))

    def _most(self, count: int) -> int:
        share = self._limits.share
        return min(count - 1, max(1, int(share * count))) if share and count else 0

    def _eject(self, record: _Record, now: float) -> None:
        limits = self._limits
        soon = record.length and now - record.until < _FORGIVEN * record.length
        record.length = min(limits.max_seconds, 2.0 * record.length) if soon else limits.seconds
        record.until = now + record.length
        record.ejections += 1
        record.watched = True
        record.probing = record.passed = record.streak = 0
