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
from functools import reduce
from typing import NamedTuple

from libs.quota.amount import NOTHING, Amount
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
    """A holder's part of one limits entry."""

    model: str
    amount: Amount
    """`NO_LIMIT` of what the entry does not limit."""


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


class _Open(NamedTuple):
    number: int
    until: int
    held: Amount


class Holdings:
    """What the gateways hold of one limits entry."""

    __slots__ = ("_first", "_held", "_open", "_seen", "_total")

    def __init__(self) -> None:
        self._open: dict[str, tuple[_Open, ...]] = {}
        self._held: dict[str, Amount] = {}
        """By holder, the most of each that one of its shares is."""
        self._seen: dict[str, int] = {}
        self._total = NOTHING
        self._first = 0
        """No share ends before."""

    def but(self, holder: str, now: int) -> Amount:
        """What all the others hold."""
        if not self._open:
            return NOTHING
        if self._first <= now:
            for name in list(self._open):
                self._set(name, tuple(each for each in self._open[name] if each.until > now))
            self._first = min((each.until for known in self._open.values() for each in known), default=0)
        own = self._held.get(holder)
        return self._total if own is None else self._total.minus(own)

    def tell(self, told: Told, now: int) -> None:
        """A share was told to a holder: those before the one that it has seen are given back."""
        seen = self._seen[told.holder] = max(told.seen, self._seen.get(told.holder, 0))
        held = Amount(told.tokens, told.requests, told.spend, told.slots, told.uncounted)
        fresh = _Open(told.number, now + told.lasts_ns, held)
        kept = [each for each in self._open.get(told.holder, ()) if each.number >= seen and each.until > now]
        if len(kept) >= _MOST_OPEN:
            one, other = kept[:2]
            kept[:2] = [_Open(other.number, max(one.until, other.until), one.held.most(other.held))]
        self._set(told.holder, (*kept, fresh))
        self._first = min(self._first, fresh.until) if self._first else fresh.until

    def of(self, holder: str) -> Amount:
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
        self._total = self._total.minus(before).plus(after)


def _most(known: Sequence[_Open]) -> Amount:
    return reduce(Amount.most, (each.held for each in known))


class OwnShare:
    """What is left of a share, at its holder."""

    __slots__ = ("_fresh", "left", "number", "told", "uncounted", "until")

    def __init__(self, told: Amount, until: int, now: int, number: int = 0, *, uncounted: bool = False) -> None:
        self.told = self.left = told
        self._fresh = now + (until - now) // _AGE
        self.until = until
        self.number = number
        """Under which it was told."""
        self.uncounted = uncounted
        """Its requests are held against the edge, too."""

    def low(self, now: int) -> bool:
        """Less than half of it is left, or it is no longer fresh."""
        return now >= self._fresh or any(2 * left < told for left, told in zip(self.left, self.told, strict=True))

    @property
    def overdrawn(self) -> bool:
        """More was given out than it is."""
        return min(self.left) < 0

    def take(self, amount: Amount) -> None:
        """Gives out; what is negative comes back."""
        self.left = self.left.minus(amount)


def part_of(limit: int, left: int, holders: int) -> int:
    """A holder's share of what is left of a limit that so many have to share."""
    if left <= 0:
        return 0
    return min(left // holders, max(1, limit // (PORTION * holders)))


def slots_of(limit: int, left: int, holders: int) -> int:
    """Likewise of streams at once. Of a limit of few none are held: what one gateway keeps, another's caller misses."""
    return max(0, min(left // holders, limit // (PORTION * holders)))
