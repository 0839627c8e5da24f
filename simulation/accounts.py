"""A few limiters and gateways with everything between them in the hands of whoever plays: messages that wait, come
twice or never, lives that end, clocks that differ. The decisions are `libs.quota`, called as the services call it.

Beside it stands a ledger that nobody in the mesh has: what really runs and what was really used, and which facts came
to which limiter. From that follows what the limit's promise allows: see "The bound" in services/ratelimit/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from libs.quota import (
    ALL_MODELS,
    MINUTE_NS,
    Admitted,
    Ask,
    Bridge,
    Cursor,
    Ledger,
    LimitSpec,
    Logged,
    Replica,
    Share,
)

SECOND = 1_000_000_000
TENANT, MODEL = "acme", "fast"
SHARE_NS, LEASE_NS, RENEW_NS = 10 * SECOND, 20 * SECOND, 5 * SECOND
Fact = tuple[str, str, int]
"""("lease", request id, its tokens) or ("share", holder, number)."""


@dataclass(slots=True)
class Message:
    """From a gateway, until it is answered; sent again on the next stream when it was not."""

    kind: str
    rid: str = ""
    tokens: int = 0
    seen: int = 0
    at: int = 0
    rids: tuple[str, ...] = ()
    sent: bool = False


@dataclass(slots=True)
class Reply:
    """To a message."""

    to: Message
    granted: bool = False
    number: int = 0
    shares: tuple[Share, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class Request:
    """What really is."""

    gateway: int
    tokens: int
    by_part: bool = False
    """Of an equal part of the limit, without a share."""
    share: Fact | None = None
    running: bool = False
    over: int | None = None
    used: int = 0
    heard: int = 0
    """When a limiter last heard of it."""

    def counts(self, now: int) -> int:
        """Tokens in the last minute."""
        if self.running:
            return self.tokens
        return self.used if self.over is not None and self.over > now - MINUTE_NS else 0


@dataclass(slots=True)
class Limiter:
    """One replica."""

    name: str
    skew: int
    replica: Replica
    life: int = 1
    knows: set[Fact] = field(default_factory=set)
    fresh: set[Fact] = field(default_factory=set)
    """Not in a batch yet."""


@dataclass(slots=True)
class Gateway:
    """One gateway."""

    number: int
    skew: int
    bridge: Bridge[int]
    life: int = 1
    to: Limiter | None = None
    outbox: list[Message] = field(default_factory=list)
    inbox: list[Reply] = field(default_factory=list)
    share: Fact | None = None
    renewed: int = 0

    @property
    def holder(self) -> str:
        """Its name at the limiters."""
        return f"gateway-{self.number}/{self.life}"


class Mesh:
    """All of them, one tenant, at one moment."""

    def __init__(self, *, limit: int, limiters: int = 2, gateways: int = 3, skews: tuple[int, ...] = (0,)) -> None:
        self.now = 1000 * SECOND
        self.limit = limit
        self.count = gateways
        self.requests: dict[str, Request] = {}
        self.forgiven: set[str] = set()
        """Requests that somebody who grants could not know: the bound names them."""
        self.loose: set[Fact] = set()
        """Shares likewise."""
        self.claimed: set[str] = set()
        """Requests that some limiter was told of."""
        self.told: dict[Fact, tuple[int, int]] = {}
        """When a share was told, and of how many tokens it was."""
        self.waiting: dict[tuple[str, str], list[tuple[Logged, set[Fact]]]] = {}
        self._serial = 0
        self._skews = skews
        self.limiters = [self._limiter(f"limiter-{n}", 1, skews[n % len(skews)]) for n in range(limiters)]
        self.gateways = [
            Gateway(n, skews[(n + 1) % len(skews)], self._bridge(skews[(n + 1) % len(skews)])) for n in range(gateways)
        ]
        self.owner = self.limiters[0]
        for gateway in self.gateways:
            self.connect(gateway)

    def _limiter(self, name: str, life: int, skew: int) -> Limiter:
        ledger = Ledger(part=(name, str(life)), track_changes=True, share_ns=SHARE_NS)
        ledger.apply_limits({(TENANT, ALL_MODELS): LimitSpec(tokens_per_minute=self.limit)}, self.now + skew)
        ledger.terms.holders = self.count
        return Limiter(name, skew, Replica(ledger), life)

    def _bridge(self, skew: int) -> Bridge[int]:
        made: Bridge[int] = Bridge()
        limits = {(TENANT, ALL_MODELS): LimitSpec(tokens_per_minute=self.limit)}
        made.apply(limits, {}, self.count, self.now + skew)
        return made

    # --- what gateways do ---------------------------------------------------------------------------------------

    def ask(self, gateway: Gateway, tokens: int) -> None:
        """A request comes to a gateway."""
        self._serial += 1
        rid = f"r{self._serial}"
        self.requests[rid] = Request(gateway.number, tokens)
        message = Message("reserve", rid, tokens, gateway.bridge.seen(TENANT), self.now)
        if gateway.to is None:
            self._decide_locally(gateway, message)
        else:
            gateway.outbox.append(message)

    def grow(self, gateway: Gateway, tokens: int) -> None:
        """The gateway's oldest request wants so many more."""
        for rid, request in self.requests.items():
            if request.gateway == gateway.number and request.running:
                if any(message.kind == "reserve" and message.rid == rid for message in gateway.outbox):
                    return
                message = Message("reserve", rid, request.tokens + tokens, gateway.bridge.seen(TENANT), self.now)
                if gateway.to is None:
                    self._decide_locally(gateway, message)
                else:
                    gateway.outbox.append(message)
                return

    def give_up(self, gateway: Gateway) -> None:
        """The oldest question was not answered in time."""
        for message in gateway.outbox:
            if message.kind == "reserve":
                gateway.outbox.remove(message)
                self._decide_locally(gateway, message)
                return

    def settle(self, gateway: Gateway, part: float, *, lost: bool = False) -> None:
        """The gateway's oldest request ends, after a part of what it reserved."""
        for rid, request in self.requests.items():
            if request.gateway == gateway.number and request.running:
                request.running, request.over = False, self.now
                request.used = int(part * request.tokens)
                gateway.bridge.settle(TENANT, MODEL, rid, request.used, self._at(gateway), spend=0)
                if not lost:
                    gateway.outbox.append(Message("settle", rid, request.used))
                return

    def cut(self, gateway: Gateway) -> None:
        """Its stream is lost, with all that was on its way."""
        gateway.to = None
        gateway.inbox.clear()
        for message in gateway.outbox:
            message.sent = False
        gateway.outbox = [message for message in gateway.outbox if message.kind != "renew"]

    def connect(self, gateway: Gateway) -> None:
        """It finds the present owner."""
        self.cut(gateway)
        gateway.to = self.owner
        self._renew(gateway)
        self._tell_grown(gateway)

    def restart(self, gateway: Gateway) -> None:
        """It dies, and another life begins."""
        self.cut(gateway)
        for request in self.requests.values():
            if request.gateway == gateway.number and request.running:
                request.running, request.over, request.used = False, self.now, request.tokens
        gateway.outbox.clear()
        gateway.bridge, gateway.life, gateway.share = self._bridge(gateway.skew), gateway.life + 1, None
        self.connect(gateway)

    def _renew(self, gateway: Gateway) -> None:
        gateway.renewed = self.now
        rids = tuple(rid for _, rid in gateway.bridge.running(self._at(gateway)))
        if rids:
            gateway.outbox.append(Message("renew", rids=rids))

    def _tell_grown(self, gateway: Gateway) -> None:
        for key in tuple(gateway.bridge.grown(self._at(gateway))):
            lost = gateway.bridge.lost(key)
            if lost is not None:
                gateway.outbox.append(Message("claim", key[1], lost[0]))

    def _decide_locally(self, gateway: Gateway, message: Message) -> None:
        request, now = self.requests[message.rid], self._at(gateway)
        ask = Ask(TENANT, MODEL, message.rid, message.tokens)
        lease_ns, until = MINUTE_NS, now + 1000 * SECOND
        outcome = gateway.bridge.reserve(ask, message.tokens, lease_ns=lease_ns, until=until, now=now)
        if isinstance(outcome, Admitted):
            told = self.told[gateway.share][0] if gateway.share is not None else 0
            if gateway.share is not None and self._share_ends(gateway) > now:
                request.share = gateway.share
                if gateway.share in self.loose or self.now >= told + SHARE_NS:
                    self.forgiven.add(message.rid)
            else:
                request.by_part = True
                self.forgiven.add(message.rid)
            request.running, request.heard, request.tokens = True, self.now, message.tokens
            if gateway.to is not None:
                gateway.outbox.append(Message("claim", message.rid, message.tokens))
            self.check()

    def _share_ends(self, gateway: Gateway) -> int:
        scope = gateway.bridge._ledger.books.scopes.wide(TENANT, self._at(gateway))
        return scope.share.until if scope.share is not None else 0

    def hear(self, gateway: Gateway) -> None:
        """The next reply comes to it."""
        if not gateway.inbox:
            return
        reply = gateway.inbox.pop(0)
        message = reply.to
        if not any(message is each for each in gateway.outbox):
            return  # it gave up
        gateway.outbox = [each for each in gateway.outbox if each is not message]
        if reply.number:
            until = message.at + gateway.skew + SHARE_NS
            gateway.bridge.told(TENANT, reply.number, reply.shares, until, self._at(gateway))
            gateway.share = ("share", gateway.holder, reply.number)
        if message.kind in ("claim", "settle"):
            gateway.bridge.taken((TENANT, message.rid))
        if message.kind == "reserve" and reply.granted:
            request = self.requests[message.rid]
            if request.over is None:  # else it ended while it asked for more
                gateway.bridge.served(
                    (TENANT, message.rid),
                    message.tokens,
                    over_quota=False,
                    until=1 << 62,
                    tokens=message.tokens,
                    spend=0,
                )
                request.running, request.tokens = True, message.tokens
                self.check()
        for rid in reply.unknown:
            lost = gateway.bridge.lost((TENANT, rid))
            if lost is not None:
                gateway.outbox.append(Message("claim", rid, lost[0]))

    # --- what limiters do ---------------------------------------------------------------------------------------

    def serve(self, gateway: Gateway) -> None:
        """The next message of a gateway comes to whoever its stream leads to."""
        limiter = gateway.to
        if limiter is None:
            return
        for message in gateway.outbox:
            if not message.sent:
                message.sent = True
                gateway.inbox.append(self.answer(limiter, gateway.holder, message))
                return

    def answer(self, limiter: Limiter, holder: str, message: Message) -> Reply:
        """As `services.ratelimit.quota.QuotaHandler` does."""
        ledger, now, reply = limiter.replica.ledger, self._at(limiter), Reply(message)
        if message.kind == "settle":
            ledger.settle(TENANT, MODEL, message.rid, message.tokens, now)
            self._learn(limiter, ("lease", message.rid, 1 << 62))
        elif message.kind == "renew":
            reply.unknown = tuple(ledger.renew(TENANT, message.rids, lease_ns=LEASE_NS, now=now))
            for rid in set(message.rids) - set(reply.unknown):
                self.requests[rid].heard = self.now
        else:
            granted = message.kind == "claim"
            ask = Ask(TENANT, MODEL, message.rid, message.tokens, holder=holder, granted=granted)
            lease = ledger.books.lease((TENANT, message.rid))
            before = lease is not None and lease.tokens >= message.tokens
            reply.granted = isinstance(ledger.reserve(ask, lease_ns=LEASE_NS, now=now), Admitted)
            if reply.granted:
                self.requests[message.rid].heard = self.now
                self._learn(limiter, ("lease", message.rid, message.tokens))
                if not granted and not before:
                    self._forgive(limiter)
                    if any(
                        request.share is not None and request.share[1] == holder and not self.known(limiter, rid)
                        for rid, request in self.requests.items()
                    ):
                        self.forgiven.add(message.rid)  # asked before it told what it gave out
            if not granted:
                reply.number, shares = ledger.tell(ask, message.seen, now)
                reply.shares = tuple(shares)
                self._forgive(limiter)
                fact = ("share", holder, reply.number)
                self.told[fact] = self.now, shares[0].tokens or 0
                self._learn(limiter, fact)
        return reply

    def repeat(self, gateway: Gateway, limiter: Limiter) -> None:
        """A settle that is on its way comes to another limiter as well."""
        for message in gateway.outbox:
            if message.kind == "settle":
                self.answer(limiter, gateway.holder, message)
                return

    def _learn(self, limiter: Limiter, fact: Fact) -> None:
        if fact[0] == "lease":
            self.claimed.add(fact[1])
        limiter.knows.add(fact)
        limiter.fresh.add(fact)

    def known(self, limiter: Limiter, rid: str) -> bool:
        """Whether it knows all that a request has, or that it is over."""
        tokens = self.requests[rid].tokens
        return any(("lease", rid, each) in limiter.knows for each in (tokens, 1 << 62))

    def _forgive(self, limiter: Limiter) -> None:
        """It grants, or tells a share, without knowing these."""
        for fact, (at, tokens) in self.told.items():
            if tokens and at + SHARE_NS > self.now and fact not in limiter.knows:
                self.loose.add(fact)
        for rid, request in self.requests.items():
            if rid in self.forgiven or not (request.heard or request.running):
                continue
            if request.heard + LEASE_NS + MINUTE_NS <= self.now and request.running:
                self.forgiven.add(rid)  # cut off for longer than its lease
            elif not self.known(limiter, rid):
                share = request.share
                held = share is not None and share in limiter.knows and self.told[share][0] + SHARE_NS > self.now
                if not held or rid in self.claimed:  # whoever it was told to has not told it
                    self.forgiven.add(rid)

    def publish(self, limiter: Limiter) -> None:
        """What it decided is on its way to the others."""
        logged = limiter.replica.flush(self._at(limiter))
        facts, limiter.fresh = limiter.fresh, set()
        if logged is not None:
            for other in self.limiters:
                if other is not limiter:
                    self.waiting.setdefault((limiter.name, other.name), []).append((logged, facts))

    def tell(self, source: Limiter, target: Limiter) -> None:
        """The next batch comes."""
        queue = self.waiting.get((source.name, target.name))
        if queue:
            logged, facts = queue.pop(0)
            if target.replica.follow(logged, self._at(target)):
                target.knows |= facts
            else:
                self.fetch(source, target)

    def fetch(self, source: Limiter, target: Limiter) -> None:
        """The whole state is taken over."""
        self.publish(source)
        cursor: Cursor | None = Cursor()
        joining = None
        while cursor is not None:
            piece = source.replica.piece(cursor, self._at(source))
            joining = target.replica.join(piece, self._at(target), joining)
            cursor = piece.next
        target.knows |= source.knows

    def kill(self, limiter: Limiter) -> None:
        """It dies with what it has not told; another one owns the tenant, and a new life joins."""
        place = self.limiters.index(limiter)
        fresh = self.limiters[place] = self._limiter(limiter.name, limiter.life + 1, limiter.skew)
        for gateway in self.gateways:
            if gateway.to is limiter:
                self.cut(gateway)
        for other in self.limiters:
            self.waiting.pop((other.name, limiter.name), None)
        others = [each for each in self.limiters if each is not fresh]
        if self.owner is limiter:
            self.owner = others[0]
        self.fetch(others[0], fresh)

    # --- time and truth -----------------------------------------------------------------------------------------

    def wait(self, nanoseconds: int) -> None:
        """Time passes."""
        self.now += nanoseconds
        for limiter in self.limiters:
            limiter.replica.ledger.expire(self._at(limiter))
        for gateway in self.gateways:
            if gateway.to is not None and self.now >= gateway.renewed + RENEW_NS:
                self._renew(gateway)

    def forget(self) -> None:
        """What is long over plays no part any more."""
        kept = {message.rid for gateway in self.gateways for message in gateway.outbox}
        kept |= {reply.to.rid for gateway in self.gateways for reply in gateway.inbox}
        past = self.now - 2 * MINUTE_NS
        for rid in [rid for rid, each in self.requests.items() if each.over is not None and each.over < past]:
            if rid not in kept:
                del self.requests[rid]
        self.told = {fact: told for fact, told in self.told.items() if told[0] > past}

    def _at(self, node: Limiter | Gateway) -> int:
        return self.now + node.skew

    @property
    def overshoot(self) -> int:
        """Tokens beyond the limit that the bound does not allow, in the minute before now."""
        used = sum(each.counts(self.now) for rid, each in self.requests.items() if rid not in self.forgiven)
        return max(0, used - self.limit)

    @property
    def excess(self) -> int:
        """Tokens beyond the limit in all."""
        return max(0, sum(each.counts(self.now) for each in self.requests.values()) - self.limit)

    def check(self) -> None:
        """:raises OverflowError: more was granted than the bound allows."""
        if self.overshoot:
            raise OverflowError(f"{self.overshoot} tokens beyond the bound")
        for gateway in self.gateways:
            mine = [each for each in self.requests.values() if each.gateway == gateway.number and each.by_part]
            if sum(each.counts(self.now) for each in mine) > max(1, self.limit // self.count) * gateway.life:
                raise OverflowError("more than an equal part of the limit was given out without a share")
