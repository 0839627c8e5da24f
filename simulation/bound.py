"""What the mesh of `simulation.accounts` is held to, of tokens and of requests per minute.

Beside it stands a ledger that nobody in the mesh has: what really runs and what was really used, and which facts came
to which limiter. From that follows what the promise allows ("The bound" in services/ratelimit/README.md): beyond the
limit there is at most

- what the last limiter that granted anything, a request, more for one, or a share, did not know then: leases, what they
  had grown by, and shares that could still be used (`granted`). What lies within a share that it was told of and that
  has not ended it did know. So it did what a gateway gives out of an allowance: that comes to it before whatever the
  gateway asks for next;
- what gateways have given out since then without a share, or out of one that an answer which they have not heard may
  have granted. A share is granted as far as it is more than what its holder holds already.

Of requests a limiter lets some pass for the edge, which knows of those shares only whose requests are held against it,
and of those a gateway gives out without asking. What is given out of others while nobody can be asked comes on top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from libs.quota import MINUTE_NS
from libs.quota.amount import Amount
from simulation.parties import SECOND, SHARE_NS, Fact, Gateway, Limiter, Piece, Request, counted, lease_of

EDGE = ""
"""The edge, as whoever asks."""


class World:
    """What is, at one moment."""

    limiters: list[Limiter]
    gateways: list[Gateway]

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.requests: dict[str, Request] = {}
        self.told: dict[Fact, int] = {}
        """When a share was told."""
        self.against_edge: set[Fact] = set()
        """Shares whose requests are held against the edge."""


class Bound(ABC):
    """Of one kind of limit."""

    def __init__(self, world: World, limit: int) -> None:
        self.limit = limit
        self._world = world
        self.allowed = 0
        """Units that whoever granted last did not know of."""
        self.since: list[tuple[str, Piece]] = []
        """Of requests, what nobody who grants had promised, given out since then."""

    @abstractmethod
    def _counts(self, request: Request) -> int:
        """What it really counts now."""

    @abstractmethod
    def _waits(self, rid: str, request: Request) -> int:
        """What it may come to, having asked and not heard: some limiter has that, or can repeat it."""

    @abstractmethod
    def _known(self, limiter: Limiter, rid: str) -> int:
        """What of it counts there at least."""

    @abstractmethod
    def _alone(self, request: Request) -> Sequence[Piece]:
        """What its gateway gave out by itself."""

    @abstractmethod
    def _left(self, left: Amount) -> int:
        """What can be given out of it yet."""

    def _holds(self, share: Fact, limiter: Limiter, holder: str) -> bool:
        """Whether the limiter holds the share for somebody, beside what it grants to this holder."""
        return share in limiter.knows

    def granted(self, limiter: Limiter, holder: str) -> None:
        """It has granted something, or is about to tell a share: all that it does not know may come on top."""
        world = self._world
        self.allowed = sum(self._unknown(limiter, holder, rid, request) for rid, request in world.requests.items())
        for gateway in world.gateways:
            for fact, left in gateway.usable(world.now):
                if fact not in limiter.knows:
                    self.allowed += max(0, self._left(left))
        self.since.clear()

    def given(self, rid: str, piece: Piece) -> None:
        """A gateway gave this out."""
        if piece.share is None:
            self.since.append((rid, piece))

    def _unknown(self, limiter: Limiter, holder: str, rid: str, request: Request) -> int:
        """Of a request, what is neither in its lease there nor within a share that was told: to somebody else than the
        one who asks, or to be given out without asking."""
        known, most = self._known(limiter, rid), self._at_most(rid, request)
        missing = max(0, most - known)
        for piece in self._alone(request):
            share = piece.share
            if share is None or not self._holds(share, limiter, holder) or (share[1] == holder and not piece.routine):
                continue
            if self._world.told.get(share, -SHARE_NS) + SHARE_NS > self._world.now:
                missing -= piece.within(known, most)
        return missing

    def _at_most(self, rid: str, request: Request) -> int:
        """What it counts; more while it waits for an answer that a limiter has or can repeat."""
        asking = self._world.gateways[request.gateway].asking(rid)
        if asking is None or request.over is not None:
            return self._counts(request)
        return max(self._counts(request), self._waits(rid, request))

    @property
    def overshoot(self) -> int:
        """Units beyond the limit that the bound does not allow, in the minute before now."""
        requests = self._world.requests
        since = sum(piece.within(0, self._counts(requests[rid])) for rid, piece in self.since)
        return max(0, self.excess - self.allowed - since)

    @property
    def excess(self) -> int:
        """Units beyond the limit in all; without a limit none."""
        return max(0, self.used - self.limit) if self.limit else 0

    @property
    def used(self) -> int:
        """Units in the minute before now."""
        return sum(self._counts(each) for each in self._world.requests.values())

    def forget(self) -> None:
        """What is over plays no part any more."""
        self.since = [each for each in self.since if each[0] in self._world.requests]


class Tokens(Bound):
    """Tokens per minute."""

    def _counts(self, request: Request) -> int:
        return request.counts(self._world.now)

    def _waits(self, rid: str, request: Request) -> int:
        asking = self._world.gateways[request.gateway].asking(rid)
        if asking is None:
            return 0
        repeated = any(limiter.knows[lease_of(rid)] >= asking.tokens for limiter in self._world.limiters)
        return asking.tokens if repeated else 0

    def _known(self, limiter: Limiter, rid: str) -> int:
        return limiter.counts(rid, self._world.now)

    def _alone(self, request: Request) -> Sequence[Piece]:
        return request.pieces

    def _left(self, left: Amount) -> int:
        return left.tokens


class Requests(Bound):
    """Requests per minute: of each request there is one."""

    def _counts(self, request: Request) -> int:
        return request.requests(self._world.now)

    def _waits(self, rid: str, request: Request) -> int:
        now = self._world.now
        if request.by_edge:  # whoever counted it may be dead: its gateway is asked for tokens only
            return int(request.began > now - MINUTE_NS)
        return int(any(limiter.knows[counted(rid)] > now for limiter in self._world.limiters))

    def _known(self, limiter: Limiter, rid: str) -> int:
        return int(limiter.knows[counted(rid)] > self._world.now)

    def _alone(self, request: Request) -> Sequence[Piece]:
        return () if request.alone is None else (request.alone,)

    def _left(self, left: Amount) -> int:
        return left.requests

    def _holds(self, share: Fact, limiter: Limiter, holder: str) -> bool:
        return share in limiter.knows and (holder != EDGE or share in self._world.against_edge)

    def given(self, rid: str, piece: Piece) -> None:
        """A gateway let it pass: without asking only out of what is held against the edge."""
        if piece.share is None or not (piece.routine or piece.share in self._world.against_edge):
            self.since.append((rid, piece))


def checked(bounds: Sequence[Bound]) -> None:
    """:raises OverflowError: more was granted than a bound allows."""
    for bound in bounds:
        if bound.overshoot:
            raise OverflowError(f"{bound.overshoot} {type(bound).__name__.lower()} beyond the bound")
