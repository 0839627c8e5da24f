"""A few limiters and gateways with everything between them in the hands of whoever plays: messages that wait, come
twice or never, lives that end, clocks that differ. The decisions are `libs.quota`, called as the services call it; the
mesh is held to the bound at every moment (`simulation.bound`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

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
)
from simulation.bound import Bound
from simulation.parties import (
    LEASE_NS,
    MODEL,
    RENEW_NS,
    SECOND,
    SHARE_NS,
    TENANT,
    Fact,
    Gateway,
    Known,
    Limiter,
    Message,
    Piece,
    Reply,
    Request,
    lasts,
    learn,
    lease_of,
    settled,
)


class Mesh(Bound):
    """All of them, one tenant, at one moment."""

    def __init__(
        self,
        *,
        limit: int,
        limiters: int = 2,
        gateways: int = 3,
        skews: tuple[int, ...] = (0,),
        allowances: bool = False,
    ) -> None:
        super().__init__(limit)
        self.count = gateways
        self.allowances = allowances
        self.waiting: dict[tuple[str, str], list[tuple[Logged, Known]]] = {}
        self._serial = 0
        self._limits = {(TENANT, ALL_MODELS): LimitSpec(tokens_per_minute=limit)}
        self.limiters = [self._limiter(f"limiter-{n}", 1, skews[n % len(skews)]) for n in range(limiters)]
        self.gateways = [
            Gateway(n, skews[(n + 1) % len(skews)], self._bridge(skews[(n + 1) % len(skews)])) for n in range(gateways)
        ]
        self.owner = self.limiters[0]
        for gateway in self.gateways:
            self.connect(gateway)

    def _limiter(self, name: str, life: int, skew: int) -> Limiter:
        ledger = Ledger(part=(name, str(life)), track_changes=True, share_ns=SHARE_NS)
        ledger.apply_limits(self._limits, self.now + skew)
        ledger.terms.holders = self.count
        return Limiter(name, skew, Replica(ledger), life)

    def _bridge(self, skew: int) -> Bridge[int]:
        made: Bridge[int] = Bridge()
        made.apply(self._limits, {}, self.count, self.now + skew)
        return made

    # --- what gateways do ---------------------------------------------------------------------------------------

    def ask(self, gateway: Gateway, tokens: int) -> None:
        """A request comes to a gateway."""
        self._serial += 1
        rid = f"r{self._serial}"
        self.requests[rid] = Request(gateway.number, gateway.life, 0)
        self._reserve(gateway, rid, tokens)

    def grow(self, gateway: Gateway, tokens: int) -> None:
        """The gateway's oldest request wants so many more."""
        rid, request = self._oldest(gateway)
        if request is not None and gateway.asking(rid) is None:
            self._reserve(gateway, rid, request.tokens + tokens)

    def _reserve(self, gateway: Gateway, rid: str, tokens: int) -> None:
        message = Message("reserve", rid, tokens, at=self.now)
        if gateway.to is None:
            self._decide_locally(gateway, message)
        elif not (self.allowances and self._allow(gateway, message)):
            gateway.bridge.asked(TENANT)
            self._say(gateway, message)

    def _say(self, gateway: Gateway, message: Message) -> None:
        """With what it has seen of shares, and whether it wants another."""
        now = self._at(gateway)
        message.seen = gateway.bridge.seen(TENANT, MODEL, "", now)
        message.wanted = self.allowances and gateway.bridge.wants(TENANT, MODEL, "", now)
        gateway.outbox.append(message)

    def _allow(self, gateway: Gateway, message: Message) -> bool:
        """It gives out of its allowance, and the owner hears of it when the gateway is served next."""
        ask, now = Ask(TENANT, MODEL, message.rid, message.tokens, grows=True), self._at(gateway)
        until = now + 1000 * SECOND
        if gateway.bridge.allow(ask, message.tokens, lease_ns=MINUTE_NS, until=until, now=now) is None:
            return False
        self._give(gateway, message, gateway.share, routine=True)
        return True

    def _give(self, gateway: Gateway, message: Message, share: Fact | None, *, routine: bool = False) -> None:
        request = self.requests[message.rid]
        piece = Piece(request.tokens, message.tokens, share, routine)
        request.pieces.append(piece)
        request.running, request.tokens = True, message.tokens
        if gateway.until <= self.now:
            self._within_part(gateway)
        if share is None:
            self.since.append((message.rid, piece))
        if gateway.to is not None:
            self._claim(gateway, message.rid)
        self.check()

    def give_up(self, gateway: Gateway) -> None:
        """The oldest question was not answered in time."""
        message = gateway.asking()
        if message is not None:
            gateway.outbox = [each for each in gateway.outbox if each is not message]
            gateway.bridge.answered(TENANT)
            if message.wanted:
                gateway.bridge.not_told(TENANT)
            self._decide_locally(gateway, message)

    def settle(self, gateway: Gateway, part: float, *, lost: bool = False) -> None:
        """The gateway's oldest request ends, after a part of what it reserved."""
        rid, request = self._oldest(gateway)
        if request is not None:
            request.running, request.over = False, self.now
            request.used = int(part * request.tokens)
            gateway.bridge.settle(TENANT, MODEL, rid, request.used, self._at(gateway), spend=0)
            if not lost:
                gateway.outbox.append(Message("settle", rid, request.used))

    def _oldest(self, gateway: Gateway) -> tuple[str, Request | None]:
        mine = (each for each in self.requests.items() if each[1].gateway == gateway.number and each[1].running)
        return next(mine, ("", None))

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
        for key in tuple(gateway.bridge.grown(self._at(gateway))):
            self._claim(gateway, key[1])

    def restart(self, gateway: Gateway) -> None:
        """It dies, and another life begins."""
        self.cut(gateway)
        for request in self.requests.values():
            if request.gateway == gateway.number and request.running:
                request.running, request.over, request.used = False, self.now, request.tokens
        gateway.outbox.clear()
        gateway.bridge, gateway.life = self._bridge(gateway.skew), gateway.life + 1
        gateway.share, gateway.until = None, 0
        self.connect(gateway)

    def _renew(self, gateway: Gateway) -> None:
        gateway.renewed = self.now
        rids = tuple(rid for _, rid in gateway.bridge.running(self._at(gateway)))
        if rids and gateway.to is not None:
            gateway.outbox.append(Message("renew", rids=rids))

    def _claim(self, gateway: Gateway, rid: str) -> None:
        lost = gateway.bridge.lost((TENANT, rid))
        if lost is not None:
            self._say(gateway, Message("claim", rid, lost[0], at=self.now))

    def _decide_locally(self, gateway: Gateway, message: Message) -> None:
        request, now = self.requests[message.rid], self._at(gateway)
        if request.over is not None:
            return  # it ended while it asked for more
        ask = Ask(TENANT, MODEL, message.rid, message.tokens, grows=True)
        lease_ns, until = MINUTE_NS, now + 1000 * SECOND
        outcome = gateway.bridge.reserve(ask, message.tokens, lease_ns=lease_ns, until=until, now=now)
        if isinstance(outcome, Admitted):
            asked = any(reply.to.kind == "reserve" for reply in gateway.inbox)
            self._give(gateway, message, gateway.share if gateway.until > self.now and not asked else None)

    def _within_part(self, gateway: Gateway) -> None:
        """Without a share it gives out an equal part of the limit, of which what it served is a part."""
        share = gateway.own(self.now)
        if share is not None and share.until > self._at(gateway):
            raise OverflowError("a share was used after its end")
        mine = [each for each in self.requests.values() if (each.gateway, each.life) == (gateway.number, gateway.life)]
        given = sum(each.local if each.running else each.counts(self.now) for each in mine)
        if given > max(1, self.limit // self.count):
            raise OverflowError("more than an equal part of the limit was given out without a share")

    def hear(self, gateway: Gateway) -> None:
        """The next reply comes to it."""
        if not gateway.inbox:
            return
        reply = gateway.inbox.pop(0)
        message = reply.to
        if not any(message is each for each in gateway.outbox):
            return  # it gave up
        gateway.outbox = [each for each in gateway.outbox if each is not message]
        request = self.requests.get(message.rid)
        if message.kind == "reserve":
            gateway.bridge.answered(TENANT)
        if reply.fact is not None:
            self._hear_share(gateway, reply)
        elif message.wanted:
            gateway.bridge.not_told(TENANT)
        if message.kind == "reserve" and request is not None and request.over is not None:
            return  # it ended while it asked for more
        if request is not None and message.kind != "reserve":
            gateway.bridge.taken((TENANT, message.rid), message.tokens if message.kind == "claim" else None)
            request.taken(message.tokens if message.kind == "claim" else request.tokens)
        elif request is not None and reply.granted:
            key, tokens = (TENANT, message.rid), message.tokens
            gateway.bridge.served(key, tokens, over_quota=False, until=1 << 62, tokens=tokens, spend=0)
            request.taken(tokens)
            request.running, request.tokens = True, tokens
            self.check()
        for rid in reply.unknown:
            self._claim(gateway, rid)

    def _hear_share(self, gateway: Gateway, reply: Reply) -> None:
        before, until = gateway.own(self.now), reply.to.at + SHARE_NS
        gateway.bridge.told(
            TENANT, reply.number, reply.shares, until + gateway.skew, self._at(gateway), allowance=reply.to.wanted
        )
        if gateway.own(self.now) is not before:
            gateway.share, gateway.until = reply.fact, until

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
            self._learn(limiter, {settled(message.rid): 1})
        elif message.kind == "renew":
            reply.unknown = tuple(ledger.renew(TENANT, message.rids, lease_ns=LEASE_NS, now=now))
            known = set(message.rids) - set(reply.unknown)
            learn(limiter.knows, dict.fromkeys(map(lasts, known), self._counted))  # and tells nobody of it
        else:
            granted = message.kind == "claim"
            ask = Ask(TENANT, MODEL, message.rid, message.tokens, holder=holder, granted=granted, grows=True)
            lease = ledger.books.lease((TENANT, message.rid))
            before = lease.tokens if lease is not None else 0
            reply.granted = isinstance(ledger.reserve(ask, lease_ns=LEASE_NS, now=now), Admitted)
            if reply.granted and before < message.tokens:
                until = limiter.knows[lasts(message.rid)] if before else self._counted
                self._learn(limiter, {lease_of(message.rid): message.tokens, lasts(message.rid): until})
                if not granted:
                    self.granted(limiter, holder)
            if message.wanted or (not granted and (not reply.granted or ledger.due(ask, now))):
                reply.number, shares = ledger.tell(ask, message.seen, now, allowance=message.wanted)
                reply.shares = tuple(shares)
                reply.fact = ("share", holder, f"{limiter.name}/{limiter.life}", reply.number)
                if shares[0].tokens:
                    self.granted(limiter, holder)
                self.told[reply.fact] = self.now
                self._learn(limiter, {reply.fact: 1})
        return reply

    def repeat(self, gateway: Gateway, limiter: Limiter) -> None:
        """A settle that is on its way comes to another limiter as well."""
        message = next((each for each in gateway.outbox if each.kind == "settle"), None)
        if message is not None:
            self.answer(limiter, gateway.holder, message)

    @property
    def _counted(self) -> int:
        """Until when a lease counts that is opened or prolonged now."""
        return self.now + LEASE_NS + MINUTE_NS

    def _learn(self, limiter: Limiter, facts: Mapping[Fact, int]) -> None:
        """By its own decision, which is in the next batch; what it knew already is not."""
        if any(limiter.knows[fact] < much for fact, much in facts.items()):
            learn(limiter.knows, facts)
            learn(limiter.fresh, facts)

    def publish(self, limiter: Limiter) -> None:
        """What it decided is on its way to the others."""
        logged = limiter.replica.flush(self._at(limiter))
        facts, limiter.fresh = limiter.fresh, Counter()
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
                learn(target.knows, facts)
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
        learn(target.knows, source.knows)

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
            if self.now >= gateway.renewed + RENEW_NS:
                self._renew(gateway)

    def forget(self) -> None:
        """What is long over plays no part any more."""
        kept = {message.rid for gateway in self.gateways for message in gateway.outbox}
        kept |= {reply.to.rid for gateway in self.gateways for reply in gateway.inbox}
        past = self.now - 2 * MINUTE_NS
        for rid in [rid for rid, each in self.requests.items() if each.over is not None and each.over < past]:
            if rid not in kept:
                del self.requests[rid]
        self.told = {fact: at for fact, at in self.told.items() if at > past}
        self.since = [each for each in self.since if each[0] in self.requests]

    def _at(self, node: Limiter | Gateway) -> int:
        return self.now + node.skew
