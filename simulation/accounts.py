"""A few limiters, gateways and an edge with everything between them in the hands of whoever plays: messages that wait,
come twice or never, lives that end, clocks that differ. The decisions are those of `libs.quota` that limiters and
gateways run (`answer`, `Bridge`); the mesh is held to the bounds at every moment (`simulation.bound`).
"""

from __future__ import annotations

from libs.quota import MINUTE_NS, Admitted, Ask, Bridge, LimitSpec
from simulation.bound import EDGE, checked
from simulation.parties import (
    MODEL,
    RENEW_NS,
    SECOND,
    SHARE_NS,
    TENANT,
    Fact,
    Gateway,
    Limiter,
    Message,
    Piece,
    Reply,
    Request,
    counted,
    lease_of,
)
from simulation.replicas import Replicas

_UNTIL = 1000 * SECOND
"""So long a request runs at most."""


class Mesh(Replicas):
    """All of them, one tenant, at one moment; `limit` is of tokens per minute, and so are the figures without a
    name."""

    def __init__(
        self,
        *,
        limit: int,
        requests: int = 0,
        limiters: int = 2,
        gateways: int = 3,
        skews: tuple[int, ...] = (0,),
        allowances: bool = False,
    ) -> None:
        super().__init__(LimitSpec(requests, limit), limiters=limiters, holders=gateways, skews=skews)
        self.allowances = allowances
        self._serial = 0
        self.gateways = [
            Gateway(n, skews[(n + 1) % len(skews)], self._bridge(skews[(n + 1) % len(skews)])) for n in range(gateways)
        ]
        for gateway in self.gateways:
            self.connect(gateway)

    def _bridge(self, skew: int) -> Bridge[Ask]:
        made: Bridge[Ask] = Bridge()
        made.apply(self._limits, {}, self.count, self.now + skew)
        return made

    @property
    def limit(self) -> int:
        """Tokens per minute."""
        return self.tokens.limit

    @property
    def allowed(self) -> int:
        """Tokens that whoever granted last did not know of."""
        return self.tokens.allowed

    @property
    def excess(self) -> int:
        """Tokens beyond the limit."""
        return self.tokens.excess

    @property
    def overshoot(self) -> int:
        """Tokens, or requests, beyond what their bound allows."""
        return max(bound.overshoot for bound in self.bounds)

    def check(self) -> None:
        """:raises OverflowError: more was granted than a bound allows."""
        checked(self.bounds)

    # --- what the edge and gateways do --------------------------------------------------------------------------

    def enter(self, gateway: Gateway, tokens: int, *, limiter: Limiter | None = None) -> bool:
        """A request comes to the edge, which asks the owner, or whoever takes itself for it; what passes goes on to a
        gateway. Others (`ask`) the edge lets pass without asking."""
        limiter = limiter or self.owner
        ledger, now = limiter.replica.ledger, self._at(limiter)
        if not isinstance(ledger.admit_edge(TENANT, requests=1, tokens=tokens, now=now), Admitted):
            return False
        rid = f"r{self._serial + 1}"
        self._learn(limiter, {counted(rid): self.now + MINUTE_NS})
        self.of_requests.granted(limiter, EDGE)
        self.ask(gateway, tokens, by_edge=True)
        return True

    def ask(self, gateway: Gateway, tokens: int, *, by_edge: bool = False) -> None:
        """A request comes to a gateway."""
        self._serial += 1
        rid = f"r{self._serial}"
        self.requests[rid] = Request(gateway.number, gateway.life, 0, by_edge, began=self.now)
        self._reserve(gateway, rid, tokens)

    def grow(self, gateway: Gateway, tokens: int) -> None:
        """The gateway's oldest request wants so many more."""
        rid, request = self._oldest(gateway)
        if request is not None and gateway.asking(rid) is None:
            self._reserve(gateway, rid, request.tokens + tokens)

    def _reserve(self, gateway: Gateway, rid: str, tokens: int) -> None:
        request = self.requests[rid]
        count = not (request.by_edge or request.running)
        ask = Ask(TENANT, MODEL, rid, tokens, holder=gateway.holder, grows=True, count_request=count)
        message = Message("reserve", rid, tokens, ask)
        if gateway.to is None:
            self._decide_locally(gateway, message)
        elif not (self.allowances and self._allow(gateway, ask)):
            self._say(gateway, message, ask)

    def _say(self, gateway: Gateway, message: Message, ask: Ask) -> None:
        message.question = gateway.bridge.say(
            (TENANT, MODEL, ""),
            self._at(gateway),
            uncounted=ask.count_request,
            claims=ask.granted,
            shares=self.allowances,
        )
        gateway.outbox.append(message)

    def _allow(self, gateway: Gateway, ask: Ask) -> bool:
        """It gives out of its allowance, and the owner hears of it when the gateway is served next."""
        now = self._at(gateway)
        if gateway.bridge.allow(ask, ask, lease_ns=MINUTE_NS, until=now + _UNTIL, now=now) is None:
            return False
        self._give(gateway, ask, gateway.share, routine=True)
        return True

    def _give(self, gateway: Gateway, ask: Ask, share: Fact | None, *, routine: bool = False) -> None:
        rid = ask.request_id
        request = self.requests[rid]
        piece, alone = Piece(request.tokens, ask.tokens, share, routine), Piece(0, 1, share, routine)
        if ask.count_request:
            self.of_requests.given(rid, alone)
        request.begin(self.now, alone)
        request.pieces.append(piece)
        request.tokens = ask.tokens
        if gateway.until <= self.now:
            self._within_part(gateway)
        self.tokens.given(rid, piece)
        if gateway.to is not None:
            self._claim(gateway, rid)
        self.check()

    def give_up(self, gateway: Gateway) -> None:
        """The oldest question was not answered in time."""
        message = gateway.asking()
        if message is not None and message.question is not None:
            gateway.outbox = [each for each in gateway.outbox if each is not message]
            gateway.bridge.hear(message.question, None, self._at(gateway))
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
            ask = lost[0]._replace(granted=True)
            self._say(gateway, Message("claim", rid, ask.tokens, ask), ask)

    def _decide_locally(self, gateway: Gateway, message: Message) -> None:
        request, ask, now = self.requests[message.rid], message.ask, self._at(gateway)
        if request.over is not None or ask is None:
            return  # it ended while it asked for more
        outcome = gateway.bridge.reserve(ask, ask, lease_ns=MINUTE_NS, until=now + _UNTIL, now=now)
        if isinstance(outcome, Admitted):
            sure = gateway.until > self.now and not self._granted_unheard(gateway)
            self._give(gateway, ask, gateway.share if sure else None)

    def _granted_unheard(self, gateway: Gateway) -> bool:
        """An answer may have granted what it holds: that is on its way, or was lost with its stream."""
        lost = (each for each in gateway.outbox if each.kind == "reserve")
        return any(reply.to.kind == "reserve" for reply in gateway.inbox) or any(
            limiter.knows[lease_of(each.rid)] >= each.tokens for each in lost for limiter in self.limiters
        )

    def _within_part(self, gateway: Gateway) -> None:
        """Without a share it gives out an equal part of the limits, of which what it served is a part."""
        share = gateway.own(self.now)
        if share is not None and share.until > self._at(gateway):
            raise OverflowError("a share was used after its end")
        mine = [each for each in self.requests.values() if (each.gateway, each.life) == (gateway.number, gateway.life)]
        given = sum(each.local if each.running else each.counts(self.now) for each in mine)
        alone = sum(each.requests(self.now) for each in mine if each.alone is not None)
        for bound, much in zip(self.bounds, (given, alone), strict=True):
            if bound.limit and much > max(1, bound.limit // self.count):
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
        request, key = self.requests.get(message.rid), (TENANT, message.rid)
        if request is not None and message.kind != "reserve":
            tokens = message.tokens if message.kind == "claim" else None
            gateway.bridge.taken(key, tokens)
            request.taken(request.tokens if tokens is None else tokens)
        if message.question is not None:
            self._hear_shares(gateway, reply)
        if request is not None and message.ask is not None and reply.granted and request.over is None:
            gateway.bridge.served(key, message.ask, over_quota=False, until=1 << 62, tokens=message.tokens, spend=0)
            request.taken(message.tokens)
            request.begin(reply.at)
            request.tokens = message.tokens
            self.check()
        for rid in reply.unknown:
            self._claim(gateway, rid)

    def _hear_shares(self, gateway: Gateway, reply: Reply) -> None:
        question = reply.to.question
        if question is None:
            return
        before = gateway.own(self.now)
        gateway.bridge.hear(question, reply.told, self._at(gateway))
        if reply.fact is not None and gateway.own(self.now) is not before:
            gateway.share, gateway.until = reply.fact, question.at - gateway.skew + SHARE_NS

    # --- what limiters do ---------------------------------------------------------------------------------------

    def serve(self, gateway: Gateway) -> None:
        """The next message of a gateway comes to whoever its stream leads to."""
        limiter = gateway.to
        if limiter is None:
            return
        for message in gateway.outbox:
            if not message.sent:
                message.sent = True
                gateway.inbox.append(self.answer(limiter, message))
                return

    def repeat(self, gateway: Gateway, limiter: Limiter) -> None:
        """A settle that is on its way comes to another limiter as well."""
        message = next((each for each in gateway.outbox if each.kind == "settle"), None)
        if message is not None:
            self.answer(limiter, message)

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
        self.against_edge &= self.told.keys()
        for bound in self.bounds:
            bound.forget()
