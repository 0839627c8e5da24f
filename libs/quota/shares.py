"""What gateways may give out by themselves while nobody can be asked: shares of what is left.

A share that was told is a *holding*: the owner counts it as used by its holder until the holder says that a later one
came to it, or until it ends. So whatever happens to the owner, what it granted and all that it told is within the
limit. Money and every limits entry of a model have shares like the tenant's tokens.

The holder counts the time of a share from when it asked, the owner from when it answered, which is later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from libs.quota.types import Told

PORTION = 8
"""All the shares of a limit together are about one part in this many: what one gateway keeps unused is lost to the
others, and to its own next life, until it ends."""
_MOST_OPEN = 4
"""Shares of one holder that are kept apart; the oldest are merged, which holds too much and never too little."""


class Share(NamedTuple):
    """A holder's part of one limits entry; None is unlimited."""

    model: str
    tokens: int | None
    requests: int | None
    spend: int | None


class _Open(NamedTuple):
    number: int
    until: int
    tokens: int
    requests: int
    spend: int


NOTHING = (0, 0, 0)


class Holdings:
    """What the gateways hold of one limits entry: (tokens, requests, micro-dollars)."""

    __slots__ = ("_first", "_held", "_open", "_seen", "_total")

    def __init__(self) -> None:
        self._open: dict[str, tuple[_Open, ...]] = {}
        self._held: dict[str, tuple[int, int, int]] = {}
        """By holder, the most of each that one of its shares is."""
        self._seen: dict[str, int] = {}
        self._total = NOTHING
        self._first = 0
        """No share ends before."""

    def but(self, holder: str, now: int) -> tuple[int, int, int]:
        """What all the others hold."""
        if not self._open:
            return NOTHING
        if self._first <= now:
            for name in list(self._open):
                self._set(name, tuple(each for each in self._open[name] if each.until > now))
            self._first = min((each.until for known in self._open.values() for each in known), default=0)
        total, own = self._total, self._held.get(holder, NOTHING)
        return total[0] - own[0], total[1] - own[1], total[2] - own[2]

    def tell(self, told: Told, now: int) -> None:
        """A share was told to a holder: those before the one that it has seen are given back."""
        seen = self._seen[told.holder] = max(told.seen, self._seen.get(told.holder, 0))
        fresh = _Open(told.number, now + told.lasts_ns, told.tokens, told.requests, told.spend)
        kept = [each for each in self._open.get(told.holder, ()) if each.number >= seen and each.until > now]
        if len(kept) >= _MOST_OPEN:
            kept[:2] = [_Open(*map(max, kept[0], kept[1]))]
        self._set(told.holder, (*kept, fresh))
        self._first = min(self._first, fresh.until) if self._first else fresh.until

    def of(self, holder: str) -> tuple[int, int, int]:
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
                tokens, requests, spend = (max(each[place] for each in known) for place in (2, 3, 4))
                until = max(each.until for each in known)
                yield Told(
                    tenant, model, name, known[-1].number, tokens, requests, spend, until - now, self._seen.get(name, 0)
                )

    def _set(self, holder: str, known: tuple[_Open, ...]) -> None:
        before = self._held.pop(holder, NOTHING)
        after = NOTHING
        if known:
            self._open[holder] = known
            after = self._held[holder] = (
                max(each.tokens for each in known),
                max(each.requests for each in known),
                max(each.spend for each in known),
            )
        else:
            self._open.pop(holder, None)
            self._seen.pop(holder, None)
        a, b, c = self._total
        self._total = (a - before[0] + after[0], b - before[1] + after[1], c - before[2] + after[2])


class OwnShare:
    """What is left of a share, at its holder."""

    __slots__ = ("requests", "spend", "tokens", "until")

    def __init__(self, share: Share, until: int) -> None:
        self.tokens, self.requests, self.spend = share.tokens, share.requests, share.spend
        self.until = until

    def take(self, tokens: int, requests: int, spend: int) -> None:
        """Gives out; what is negative comes back."""
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
