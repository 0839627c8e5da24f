"""A ledger that follows other replicas of itself: which decisions it has taken over, in order, each once.

Pure. A replica numbers the batches of its own decisions, from 1 in each of its *lives*; the others apply them in order
and ask for the state when one is missing. Use is kept by who decided it (`Window`'s parts), so a state is joined by
taking, of every part, the view that has followed it further: nothing is counted twice and nothing is lost that either
side has seen, however long the two could not talk.

A state travels in pieces, each small enough to be made between two decisions, of a few *buckets* of tenants as they are
at that moment. Between two pieces decisions go on. So for a while some buckets are *ahead* of what was followed of a
part: a batch is not applied to those that hold it already.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from libs.quota import following
from libs.quota.bucket import BUCKETS, bucket_of
from libs.quota.ledger import Ledger
from libs.quota.types import Batch, LedgerState
from libs.quota.window import Part

_MAX_EARLY = 512
"""Batches per part that are kept until the state has come."""
_MAX_PARTS = 256
"""Lives of replicas that are remembered: those that were heard last."""
_MOST_BUCKETS, _MOST_SCOPES, _MOST_LEASES, _MOST_IDS = 256, 12, 48, 128
"""In one piece of the state, about, so that it is made and joined in a millisecond, or in two on a slow machine."""

_ALL_IDS = 1 << 62


class Seen(NamedTuple):
    """How far a part was followed."""

    part: Part
    sequence: int


class Logged(NamedTuple):
    """A batch with its place."""

    part: Part
    sequence: int
    batch: Batch


class Cursor(NamedTuple):
    """Where a piece of the state begins."""

    bucket: int = 0
    first_id: int = 0
    """Beyond 0: only ids are left of the bucket, from this place..."""
    past_id: int = 0
    """... up to this one: those that were there when the rest of the bucket was told."""


class Piece(NamedTuple):
    """What a replica knows of some buckets."""

    start: Cursor
    next: Cursor | None
    """Of the next one; None after the last."""
    ledger: LedgerState
    seen: tuple[Seen, ...]


class Joining(NamedTuple):
    """Where the ids of a bucket follow its scopes in further pieces: which parts were taken over, and when."""

    newer: dict[int, frozenset[Part]]
    since: int


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
        self._ahead: dict[Part, dict[int, int]] = {}
        """By bucket, where it was followed further than `_seen`."""
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
        """Applies another's batch, once. False when one before it is missing: it is kept, and the state of its part is
        wanted (`join`)."""
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
        part, sequence, batch = logged
        ahead = self._ahead.get(part)
        if ahead:
            batch = batch.only(lambda tenant: ahead.get(bucket_of(tenant), 0) < sequence)
        self.ledger.apply(batch, part, now)
        self._heard(part, sequence)
        if self._keep_log:
            self._log.append(logged)

    def _heard(self, part: Part, sequence: int) -> None:
        self._seen.pop(part, None)  # those that were heard last are at the end
        self._seen[part] = sequence
        ahead = self._ahead.get(part)
        if ahead is not None and max(ahead.values()) <= sequence:
            del self._ahead[part]
        while len(self._seen) > _MAX_PARTS:
            gone = next(iter(self._seen))
            del self._seen[gone]
            self._ahead.pop(gone, None)
            self._early.pop(gone, None)

    # --- the state, in pieces -----------------------------------------------------------------------------------

    def piece(self, start: Cursor, now: int) -> Piece:
        """The state from there on. Call `flush` before and hand out what it gives first: it is in the state already."""
        self.ledger.expire(now)
        buckets = self.ledger.books.scopes.buckets
        first = start.bucket
        if start.first_id:
            past_id = min(start.past_id, start.first_id + _MOST_IDS)
            following_ids = past_id < start.past_id
            past, ids = first + 1, (start.first_id, past_id)
        else:
            past, scopes, leases, known = first, 0, 0, 0
            behind = not self._ahead  # as hardly ever: then nobody is asked about every bucket
            ahead = not behind and self._is_ahead(first)
            most = min(BUCKETS, first + _MOST_BUCKETS)
            while past < most and scopes < _MOST_SCOPES and leases < _MOST_LEASES and known < _MOST_IDS:
                if not behind and past > first and (ahead or self._is_ahead(past)):
                    break  # all buckets of a piece were followed equally far
                bucket = buckets.get(past)
                if bucket is not None:
                    if past > first and known + len(bucket.settled) > _MOST_IDS:
                        break
                    scopes += len(bucket.scopes)
                    leases += len(bucket.leases)
                    known += len(bucket.settled)
                past += 1
            count, past_id, following_ids = 0, _ALL_IDS, False
            if past == first + 1 and first in buckets:
                settled = buckets[first].settled
                count = settled.first + settled.places
                past_id = settled.first + _MOST_IDS
                following_ids = past_id < count
            ids = (0, past_id)
            start = start._replace(past_id=count)
        if following_ids:
            after: Cursor | None = Cursor(first, past_id, start.past_id)
        else:
            after = Cursor(past) if past < BUCKETS else None
        state = following.state(self.ledger.books, first, past, ids, now)
        return Piece(start, after, state, tuple(self._seen_of(first)))

    def _is_ahead(self, bucket: int) -> bool:
        return any(bucket in ahead for ahead in self._ahead.values())

    def _seen_of(self, bucket: int) -> list[Seen]:
        parts = {**self._seen, **dict.fromkeys(self._ahead.keys() - self._seen.keys(), 0)}
        seen = [Seen(part, self._reached(part, bucket)) for part in parts]
        if self._sequence:
            seen.append(Seen(self.ledger.part, self._sequence))
        return seen

    def _reached(self, part: Part, bucket: int) -> int:
        ahead = self._ahead.get(part)
        return max(self._seen.get(part, 0), ahead.get(bucket, 0) if ahead else 0)

    def join(self, piece: Piece, now: int, before: Joining | None = None) -> Joining:
        """Takes over a piece of what another replica (or this one's former life) knows, as of `now`.

        :param before: what joining the piece before it gave.
        """
        first = piece.start.bucket
        past = piece.next.bucket if piece.next is not None else BUCKETS
        if piece.start.first_id and before is not None:
            joining = before
        else:
            joining = Joining({}, now)
            further = [
                (part, sequence)
                for part, sequence in piece.seen
                if part != self.ledger.part and sequence > self._seen.get(part, 0)
            ]
            for bucket in range(first, max(past, first + 1)) if further else ():
                newer = [(part, sequence) for part, sequence in further if sequence > self._reached(part, bucket)]
                joining.newer[bucket] = frozenset(part for part, _ in newer)
                for part, sequence in newer:
                    self._ahead.setdefault(part, {})[bucket] = sequence
        none: frozenset[Part] = frozenset()
        self.ledger.hold(told for scope in piece.ledger.scopes for told in scope.told)
        following.join(
            self.ledger.books,
            piece.ledger,
            lambda tenant: joining.newer.get(bucket_of(tenant), none),
            joining.since,
            now,
        )
        if piece.next is None:
            self._catch_up(now)
        return joining

    def _catch_up(self, now: int) -> None:
        """The whole state was joined: what every bucket has reached was followed."""
        for part, ahead in list(self._ahead.items()):
            if len(ahead) == BUCKETS:
                self._heard(part, max(self._seen.get(part, 0), min(ahead.values())))
                for logged in self._early.pop(part, ()):
                    self.follow(logged, now)

    def take_log(self) -> tuple[Logged, ...]:
        """All batches since the last call, in the order in which they were applied here."""
        log, self._log = tuple(self._log), []
        return log
