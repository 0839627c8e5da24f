"""A ledger that follows other replicas of itself: which decisions it has taken over, in order, each once.

Pure. A replica numbers the batches of its own decisions, from 1 in each of its *lives*; the others apply them in order
and ask for the whole state when one is missing. Use is kept by who decided it (`Window`'s parts), so a whole state is
joined by taking, of every part, the view that has followed it further: nothing is counted twice and nothing is lost
that either side has seen, however long the two could not talk.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from libs.quota.ledger import Ledger
from libs.quota.types import Batch, LedgerState
from libs.quota.window import Part

_MAX_EARLY = 512
"""Batches per part that are kept until the whole state has come."""
_MAX_PARTS = 256
"""Lives of replicas that are remembered."""


class Seen(NamedTuple):
    """How far a part was followed."""

    part: Part
    sequence: int


class Logged(NamedTuple):
    """A batch with its place."""

    part: Part
    sequence: int
    batch: Batch


class ReplicaState(NamedTuple):
    """Everything a replica knows."""

    ledger: LedgerState
    seen: tuple[Seen, ...]


class Replica:
    """One ledger among its peers.

    :param ledger: made with `track_changes` and this replica's own `part`, (instance, life).
    :param keep_log: keep all batches, own and others', for `take_log`; whoever sets it must call that regularly.
    """

    def __init__(self, ledger: Ledger, *, keep_log: bool = False) -> None:
        self.ledger = ledger
        self._keep_log = keep_log
        self._sequence = 0
        self._seen: dict[Part, int] = {}
        self._early: dict[Part, deque[Logged]] = {}
        self._log: list[Logged] = []

    def flush(self, now: int) -> Logged | None:
        """What was decided here since the last call, as the next batch; None when nothing was."""
        batch = self.ledger.take_changes(now)
        if not any(batch):
            return None
        self._sequence += 1
        logged = Logged(self.ledger.part, self._sequence, batch)
        if self._keep_log:
            self._log.append(logged)
        return logged

    def follow(self, logged: Logged, now: int) -> bool:
        """Applies another's batch, once. False when one before it is missing: it is kept, and the whole state of its
        part is wanted (`join`)."""
        if logged.part == self.ledger.part:
            return True
        seen = self._seen.get(logged.part, 0)
        if logged.sequence > seen + 1:
            self._early.setdefault(logged.part, deque(maxlen=_MAX_EARLY)).append(logged)
            return False
        if logged.sequence == seen + 1:
            self._apply(logged, now)
        return True

    def _apply(self, logged: Logged, now: int) -> None:
        self.ledger.apply(logged.batch, logged.part, now)
        self._seen[logged.part] = logged.sequence
        if self._keep_log:
            self._log.append(logged)

    def state(self, now: int) -> ReplicaState:
        """Everything. Call `flush` before and hand out what it gives first: the state holds that already."""
        seen = [Seen(part, sequence) for part, sequence in self._seen.items()]
        if self._sequence:
            seen.append(Seen(self.ledger.part, self._sequence))
        return ReplicaState(self.ledger.state(now), tuple(seen))

    def join(self, state: ReplicaState, now: int) -> None:
        """Takes over what another replica (or this one's former life) knew, as of `now`."""
        newer = {
            part: sequence
            for part, sequence in state.seen
            if part != self.ledger.part and sequence > self._seen.get(part, 0)
        }
        known = (self._seen.keys() | {self.ledger.part}) - newer.keys()
        self.ledger.join(state.ledger, newer, known, now)
        self._seen.update(newer)
        for part in newer:
            for logged in self._early.pop(part, ()):
                self.follow(logged, now)
        while len(self._seen) > _MAX_PARTS:
            del self._seen[next(iter(self._seen))]

    def take_log(self) -> tuple[Logged, ...]:
        """All batches since the last call, in the order in which they were applied here."""
        log, self._log = tuple(self._log), []
        return log
