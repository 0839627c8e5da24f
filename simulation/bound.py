"""What the mesh of `simulation.accounts` is held to.

Beside it stands a ledger that nobody in the mesh has: what really runs and what was really used, and which facts came
to which limiter. From that follows what the promise allows ("The bound" in services/ratelimit/README.md): beyond the
limit there is at most

- what the last limiter that granted anything, a request, more for one, or a share, did not know then: leases, what they
  had grown by, and shares that could still be used (`granted`). What lies within a share that it was told of and that
  has not ended it did know. So it did what a gateway gives out of an allowance: that comes to it before whatever the
  gateway asks for next;
- what gateways have given out since then without a share, or out of one that the next one was about to replace.
"""

from __future__ import annotations

from simulation.parties import SECOND, SHARE_NS, Fact, Gateway, Limiter, Piece, Request, lease_of


class Bound:
    """What really is, at one moment."""

    limiters: list[Limiter]
    gateways: list[Gateway]

    def __init__(self, limit: int) -> None:
        self.now = 1000 * SECOND
        self.limit = limit
        self.requests: dict[str, Request] = {}
        self.told: dict[Fact, int] = {}
        """When a share was told."""
        self.allowed = 0
        """Tokens that whoever granted last did not know of."""
        self.since: list[tuple[str, Piece]] = []
        """Of requests, what nobody who grants had promised, given out since then."""

    def granted(self, limiter: Limiter, holder: str) -> None:
        """It has granted something, or is about to tell a share: all that it does not know may come on top."""
        self.allowed = sum(self._unknown(limiter, holder, rid, request) for rid, request in self.requests.items())
        for gateway in self.gateways:
            for fact, tokens in gateway.usable(self.now):
                if fact not in limiter.knows:
                    self.allowed += tokens
        self.since.clear()

    def _unknown(self, limiter: Limiter, holder: str, rid: str, request: Request) -> int:
        """Of a request, what is neither in its lease there nor within a share that was told: to somebody else than the
        one who asks, or to be given out without asking."""
        known, most = limiter.counts(rid, self.now), self._at_most(rid, request)
        missing = max(0, most - known)
        for piece in request.pieces:
            share = piece.share
            if share is None or share not in limiter.knows or (share[1] == holder and not piece.routine):
                continue
            if self.told.get(share, -SHARE_NS) + SHARE_NS > self.now:
                missing -= piece.within(known, most)
        return missing

    def _at_most(self, rid: str, request: Request) -> int:
        """What it counts; more while it waits for an answer that a limiter has or can repeat."""
        asking = self.gateways[request.gateway].asking(rid)
        if asking is None or request.over is not None:
            return request.counts(self.now)
        repeated = any(limiter.knows[lease_of(rid)] >= asking.tokens for limiter in self.limiters)
        return asking.tokens if repeated else request.counts(self.now)

    @property
    def overshoot(self) -> int:
        """Tokens beyond the limit that the bound does not allow, in the minute before now."""
        since = sum(piece.within(0, self.requests[rid].counts(self.now)) for rid, piece in self.since)
        return max(0, self.excess - self.allowed - since)

    @property
    def excess(self) -> int:
        """Tokens beyond the limit in all."""
        return max(0, sum(each.counts(self.now) for each in self.requests.values()) - self.limit)

    def check(self) -> None:
        """:raises OverflowError: more was granted than the bound allows."""
        if self.overshoot:
            raise OverflowError(f"{self.overshoot} tokens beyond the bound")
