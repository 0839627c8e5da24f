"""What gateways may give out by themselves: shares of what is left.

A share that was told is a *holding*: the owner counts it as used by its holder until the holder says that a later one
came to it, or until it ends. So whatever happens to the owner, what it granted and all that it told is within the
limit. Money and every limits entry of a model have shares like the tenant's tokens.

A share is for when nobody can be asked. To a gateway that says so it is an *allowance*, too: it gives out of it without
asking. Then it holds slots as well, and its requests are held against the edge, where that does not count them.

The holder counts the time of a share from when it asked, the owner from when it answered, which is later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from libs.quota.types import Told

HOLDERS = frozenset({"gateway", "predictor"})
"""Services whose processes reserve, each of them for itself."""
PORTION = 8
"""All the shares of a limit together are about one part in this many: what one gateway keeps unused is lost to the
others, and to its own next life, until it ends."""
_AGE = 4
"""A share is replaced when this part of its time is over."""
_MOST_OPEN = 4
"""Shares of one holder that are kept apart; the oldest are merged, which holds too much and never too little."""


class Share(NamedTuple):
    """A holder's part of one limits entry; None is unlimited."""

    model: str
    tokens: int | None
    requests: int | None
    spend: int | None
    slots: int | None = 0


class Allotment(NamedTuple):
    """Shares that are told together, of all limits that cover a request."""

    number: int
    """It grows."""
    shares: tuple[Share, ...]
    """The tenant's own first."""
    lasts_ns: int
    """Counted by the holder from when it asked."""
    allowance: bool
    """They may be given out without asking."""


class Held(NamedTuple):
    """What is held of one limits entry."""

    tokens: int
    requests: int
    spend: int
    slots: int = 0
    uncounted: int = 0
    """Of the requests, those that are held against the edge as well: it did not count the holder's."""


class _Open(NamedTuple):
    number: int
    until: int
    held: Held


NOTHING = Held(0, 0, 0)


class Holdings:
    """What the gateways hold of one limits entry."""

    __slots__ = ("_first", "_held", "_open", "_seen", "_total")

    def __init__(self) -> None:
        self._open: dict[str, tuple[_Open, ...]] = {}
        self._held: dict[str, Held] = {}
        """By holder, the most of each that one of its shares is."""
        self._seen: dict[str, int] = {}
        self._total = NOTHING
        self._first = 0
        """No share ends before."""

    def but(self, holder: str, now: int) -> Held:
        """What all the others hold."""
        if not self._open:
            return NOTHING
        if self._first <= now:
            for name in list(self._open):
                self._set(name, tuple(each for each in self._open[name] if each.until > now))
            self._first = min((each.until for known in self._open.values() for each in known), default=0)
        own = self._held.get(holder)
        return self._total if own is None else Held(*map(sub, self._total, own))

    def tell(self, told: Told, now: int) -> None:
        """A share was told to a holder: those before the one that it has seen are given back."""
        seen = self._seen[told.holder] = max(told.seen, self._seen.get(told.holder, 0))
        held = Held(told.tokens, told.requests, told.spend, told.slots, told.uncounted)
        fresh = _Open(told.number, now + told.lasts_ns, held)
        kept = [each for each in self._open.get(told.holder, ()) if each.number >= seen and each.until > now]
        if len(kept) >= _MOST_OPEN:
            one, other = kept[:2]
            kept[:2] = [_Open(other.number, max(one.until, other.until), Held(*map(max, one.held, other.held)))]
        self._set(told.holder, (*kept, fresh))
        self._first = min(self._first, fresh.until) if self._first else fresh.until

    def of(self, holder: str) -> Held:
        """What is held for it."""
        return self._held.get(holder, NOTHING)

    def lasts(self, holder: str, now: int) -> int:
        """How long the last share that a holder was told goes on; 0 for none."""
        known = self._open.get(holder)
        return known[-1].until - now if known else 0

    def knows(self, holder: str) -> bool:
        """Whether it holds anything, or may."""
        return holder in self._open

    def told(self, tenant: str, model: str, now: int, holder: str = "") -> Iterator[Told]:
        """What is held, by this holder or by all, at rest."""
        for name in (holder,) if holder else tuple(self._open):
            known = [each for each in self._open.get(name, ()) if each.until > now]
            if known:
                held = _most(known)
                until = max(each.until for each in known)
                yield Told(
                    tenant,
                    model,
                    name,
                    known[-1].number,
                    held.tokens,
                    held.requests,
                    held.spend,
                    until - now,
                    self._seen.get(name, 0),
                    held.slots,
                    held.uncounted,
                )

    def _set(self, holder: str, known: tuple[_Open, ...]) -> None:
        before = self._held.pop(holder, NOTHING)
        after = NOTHING
        if known:
            self._open[holder] = known
            after = self._held[holder] = _most(known)
        else:
            self._open.pop(holder, None)
            self._seen.pop(holder, None)
        self._total = Held(*(total - old + new for total, old, new in zip(self._total, before, after, strict=True)))


def _most(known: Sequence[_Open]) -> Held:
    return known[0].held if len(known) == 1 else Held(*map(max, *(each.held for each in known)))


class OwnShare:
    """What is left of a share, at its holder."""

    __slots__ = ("_old", "_told", "number", "requests", "slots", "spend", "tokens", "uncounted", "until")

    def __init__(self, share: Share, until: int, now: int, number: int = 0, *, uncounted: bool = False) -> None:
        self._told = share
        self._old = now + (until - now) // _AGE
        self.tokens, self.requests, self.spend, self.slots = share.tokens, share.requests, share.spend, share.slots
        self.until = until
        self.number = number
        """Under which it was told."""
        self.uncounted = uncounted
        """Its requests are held against the edge, too."""

    def low(self, now: int) -> bool:
        """Less than half of it is left, or it is no longer fresh."""
        _, tokens, requests, spend, slots = self._told
        return (
            now >= self._old
            or (tokens is not None and self.tokens is not None and 2 * self.tokens < tokens)
            or (requests is not None and self.requests is not None and 2 * self.requests < requests)
            or (spend is not None and self.spend is not None and 2 * self.spend < spend)
            or (slots is not None and self.slots is not None and 2 * self.slots < slots)
        )

    @property
    def overdrawn(self) -> bool:
        """More was given out than it is."""
        left = (self.tokens, self.requests, self.spend, self.slots)
        return any(each is not None and each < 0 for each in left)

    def take(self, tokens: int, requests: int, spend: int, slots: int = 0) -> None:
        """Gives out; what is negative comes back."""
        if self.slots is not None:
            self.slots -= slots
        if self.tokens is not None:
            self.tokens -= tokens
        if self.requests is not None:
            self.requests -= requests
        if self.spend is not None:
            self.spend -= spend


def part_of(limit: int, left: int, holders: int) -> int:
    """A holder's share of what is left of a limit that so many have to share."""
    if left <= 0:
        return 0
    return min(left // holders, max(1, limit // (PORTION * holders)))


def slots_of(limit: int, left: int, holders: int) -> int:
    """Likewise of streams at once. Of a limit of few none are held: what one gateway keeps, another's caller misses."""
    return max(0, min(left // holders, limit // (PORTION * holders)))
