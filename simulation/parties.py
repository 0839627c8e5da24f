"""Who takes part where limiters and gateways are played (`simulation.accounts`), what they say, and what really is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from libs.quota import MINUTE_NS, Allotment, Ask, Bridge, Question, Replica
from libs.quota.amount import Amount
from libs.quota.shares import OwnShare

SECOND = 1_000_000_000
TENANT, MODEL = "acme", "fast"
SHARE_NS, LEASE_NS, RENEW_NS = 10 * SECOND, 20 * SECOND, 5 * SECOND
_ALL = 1 << 62
Fact = tuple[str, str, str, int]
"""("request", "lease", "lasts" or "settled", request id, "", 0) or ("share", holder, who told it, number)."""
Known = Counter[Fact]
"""Facts, with how much is known of each; more is known by whoever heard of it twice, never less."""


def counted(rid: str) -> Fact:
    """Until when a request counts with the requests per minute."""
    return ("request", rid, "", 0)


def lease_of(rid: str) -> Fact:
    """The tokens of a request's lease. It only grows."""
    return ("lease", rid, "", 0)


def lasts(rid: str) -> Fact:
    """Until when a lease counts, if nobody prolongs it: its own time, and the minute after its end."""
    return ("lasts", rid, "", 0)


def settled(rid: str) -> Fact:
    """What a request has used."""
    return ("settled", rid, "", 0)


def learn(known: Known, facts: Mapping[Fact, int]) -> None:
    """Adds to what is known."""
    for fact, much in facts.items():
        known[fact] = max(known[fact], much)


@dataclass(slots=True)
class Message:
    """From a gateway, until it is answered; sent again on the next stream when it was not."""

    kind: str
    rid: str = ""
    tokens: int = 0
    ask: Ask | None = None
    """What is to be reserved, or is claimed; with it goes ..."""
    question: Question | None = None
    """... this."""
    rids: tuple[str, ...] = ()
    sent: bool = False


@dataclass(slots=True)
class Reply:
    """To a message."""

    to: Message
    at: int
    granted: bool = False
    told: Allotment | None = None
    fact: Fact | None = None
    """The shares that are told."""
    unknown: tuple[str, ...] = ()


class Piece(NamedTuple):
    """Tokens of a request that its gateway gave out by itself."""

    first: int
    past: int
    share: Fact | None
    """Out of which; None: of an equal part of the limit, or beside a share that an unheard answer may have granted."""
    routine: bool = False
    """As an allowance, while the owner could have been asked."""

    def within(self, first: int, past: int) -> int:
        """How many of these tokens of the request they are."""
        return max(0, min(self.past, past) - max(self.first, first))


@dataclass(slots=True)
class Request:
    """What really is."""

    gateway: int
    life: int
    """Of the gateway."""
    tokens: int
    """Reserved in all; what it is to have beyond that is in a message."""
    by_edge: bool = False
    """The edge counted it."""
    pieces: list[Piece] = field(default_factory=list)
    alone: Piece | None = None
    """The request itself, where its gateway let it pass: one of one."""
    began: int = 0
    """When it was let pass, by whoever counts it."""
    running: bool = False
    over: int | None = None
    used: int = 0

    def begin(self, at: int, alone: Piece | None = None) -> None:
        """It was let pass, if it had not been; by its gateway `alone`."""
        if not self.running:
            self.running, self.alone = True, None if self.by_edge else alone
            self.began = self.began if self.by_edge else at

    def counts(self, now: int) -> int:
        """Tokens in the last minute."""
        if self.running:
            return self.tokens
        return self.used if self.over is not None and self.over > now - MINUTE_NS else 0

    def requests(self, now: int) -> int:
        """Whether it is one of the last minute."""
        return int((self.running or self.over is not None) and self.began > now - MINUTE_NS)

    @property
    def local(self) -> int:
        """Tokens that the gateway gave out by itself."""
        return sum(piece.past - piece.first for piece in self.pieces)

    def taken(self, tokens: int) -> None:
        """A limiter has so many in a lease: of no share any more."""
        self.pieces = [piece._replace(share=None) if piece.past <= tokens else piece for piece in self.pieces]
        if self.alone is not None:
            self.alone = self.alone._replace(share=None)


@dataclass(slots=True)
class Limiter:
    """One replica."""

    name: str
    skew: int
    replica: Replica
    life: int = 1
    knows: Known = field(default_factory=Counter)
    fresh: Known = field(default_factory=Counter)
    """Not in a batch yet."""

    def counts(self, rid: str, now: int) -> int:
        """Tokens of a request that count here at least; of one that was settled, all."""
        if settled(rid) in self.knows:
            return _ALL
        return self.knows[lease_of(rid)] if self.knows[lasts(rid)] > now else 0


@dataclass(slots=True)
class Gateway:
    """One gateway."""

    number: int
    skew: int
    bridge: Bridge[Ask]
    life: int = 1
    to: Limiter | None = None
    outbox: list[Message] = field(default_factory=list)
    inbox: list[Reply] = field(default_factory=list)
    share: Fact | None = None
    """The one that it has, or had last, ..."""
    until: int = 0
    """... and its end."""
    renewed: int = 0

    @property
    def holder(self) -> str:
        """Its name at the limiters."""
        return f"gateway-{self.number}/{self.life}"

    def own(self, now: int) -> OwnShare | None:
        """What is left of its share, if it was told one."""
        return self.bridge._ledger.books.scopes.wide(TENANT, now + self.skew).share

    def usable(self, now: int) -> Iterator[tuple[Fact, Amount]]:
        """Shares that it has or will hear of, as much as can be given out of them yet."""
        own = self.own(now)
        if self.share is not None and self.until > now and own is not None:
            yield self.share, own.left
        for reply in self.inbox:
            if reply.fact is not None and reply.told is not None:
                yield reply.fact, reply.told.shares[0].amount

    def asking(self, rid: str = "") -> Message | None:
        """Its oldest question that is not answered, of this request or of any."""
        mine = (each for each in self.outbox if each.kind == "reserve" and (not rid or each.rid == rid))
        return next(mine, None)
