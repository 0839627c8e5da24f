"""The limiters of `simulation.accounts`: what each answers and knows, and what they tell one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from libs.quota import ALL_MODELS, MINUTE_NS, Admitted, Ask, Cursor, Ledger, LimitSpec, Logged, Replica, answer
from libs.quota.amount import NO_LIMIT, Amount
from simulation.bound import Requests, Tokens, World
from simulation.parties import (
    LEASE_NS,
    MODEL,
    SHARE_NS,
    TENANT,
    Fact,
    Gateway,
    Known,
    Limiter,
    Message,
    Reply,
    counted,
    lasts,
    learn,
    lease_of,
    settled,
)


class Replicas(World):
    """All of them, of which one owns the tenant."""

    def __init__(self, spec: LimitSpec, *, limiters: int, holders: int, skews: tuple[int, ...]) -> None:
        super().__init__()
        self.tokens, self.of_requests = Tokens(self, spec.tokens_per_minute), Requests(self, spec.requests_per_minute)
        self.bounds = self.tokens, self.of_requests
        self.count = holders
        self.waiting: dict[tuple[str, str], list[tuple[Logged, Known]]] = {}
        self._limits = {(TENANT, ALL_MODELS): spec}
        self.limiters = [self._limiter(f"limiter-{n}", 1, skews[n % len(skews)]) for n in range(limiters)]
        self.owner = self.limiters[0]

    def _limiter(self, name: str, life: int, skew: int) -> Limiter:
        ledger = Ledger(part=(name, str(life)), track_changes=True, share_ns=SHARE_NS)
        ledger.apply_limits(self._limits, self.now + skew)
        ledger.terms.holders = self.count
        return Limiter(name, skew, Replica(ledger), life)

    def answer(self, limiter: Limiter, message: Message) -> Reply:
        """As `services.ratelimit.quota.QuotaHandler` does."""
        ledger, now, reply = limiter.replica.ledger, self._at(limiter), Reply(message, self.now)
        if message.kind == "settle":
            ledger.settle(TENANT, MODEL, message.rid, message.tokens, now)
            self._learn(limiter, {settled(message.rid): 1})
        elif message.kind == "renew":
            reply.unknown = tuple(ledger.renew(TENANT, message.rids, lease_ns=LEASE_NS, now=now))
            known = set(message.rids) - set(reply.unknown)
            learn(limiter.knows, dict.fromkeys(map(lasts, known), self._counted))  # and tells nobody of it
        elif message.ask is not None and message.question is not None:
            ask, question = message.ask, message.question
            lease = ledger.books.lease((TENANT, message.rid))
            before = lease.tokens if lease is not None else 0
            held = ledger.covering(TENANT, MODEL, "", now)[0].holdings.of(ask.holder)
            outcome, reply.told = answer(
                ledger, ask, seen=question.seen, wanted=question.wanted, lease_ns=LEASE_NS, now=now
            )
            passed = isinstance(outcome, Admitted)
            reply.granted = passed and not ask.granted
            if passed:
                self._reserved(limiter, ask, before)
            if reply.told is not None:
                self._told(limiter, ask, reply, held)
        return reply

    def _reserved(self, limiter: Limiter, ask: Ask, before: int) -> None:
        """It has a lease, of which it had `before`."""
        rid, holder = ask.request_id, ask.holder
        if not before and ask.count_request:
            self._learn(limiter, {counted(rid): self.now + MINUTE_NS})
            if not ask.granted:
                self.of_requests.granted(limiter, holder)
        if before < ask.tokens:
            until = limiter.knows[lasts(rid)] if before else self._counted
            self._learn(limiter, {lease_of(rid): ask.tokens, lasts(rid): until})
            if not ask.granted:
                self.tokens.granted(limiter, holder)

    def _told(self, limiter: Limiter, ask: Ask, reply: Reply, held: Amount) -> None:
        """It is about to tell shares. What it `held` for the gateway before it has granted already."""
        told = reply.told
        if told is None:
            return
        reply.fact = ("share", ask.holder, f"{limiter.name}/{limiter.life}", told.number)
        for bound, much, known in zip(self.bounds, told.shares[0].amount[:2], held, strict=False):
            if known < much != NO_LIMIT:
                bound.granted(limiter, ask.holder)
        if told.allowance and ask.count_request:
            self.against_edge.add(reply.fact)
        self.told[reply.fact] = self.now
        self._learn(limiter, {reply.fact: 1})

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

    def _at(self, node: Limiter | Gateway) -> int:
        return self.now + node.skew
