"""Which admission process decides for a pool: terms whose numbers only grow, and of which a worker takes the newest.

A process begins a term with a number above all that it has heard of and tells the pool's workers. A worker that has
heard of a term accepts no grant of an older one, confirms the term with its next report, and tells every process of
it: so whoever decided before learns that it does no more. Before that confirmation nothing is granted on the worker,
and with it comes what the worker still runs under older terms: no block is granted twice that a worker would accept,
whoever believes what. This needs neither clock nor store: the worker, whose memory it is, arbitrates.

After the ballots of Paxos (Lamport, "The Part-Time Parliament", 1998), each worker an acceptor of its own; the number
that fences what a former owner still says is Kleppmann's fencing token ("How to do distributed locking", 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

_LOW_BITS = 32
"""Of a term's number, drawn: two processes that begin a term at once begin different ones, and one is the newer."""
_MOST = (1 << 64) - 1


class Owns(Enum):
    """What a process is to do that is asked to decide for a pool."""

    DECIDE = "decide"
    """It owns it."""
    CLAIM = "claim"
    """Nobody does who could: begin a term."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another process owns the pool, or should."""

    owner: str
    """Its instance."""
    epoch: int
    """Its term; 0: none that is known."""


@dataclass(frozen=True, slots=True)
class World:
    """What this process sees around a pool."""

    others: Collection[str] | None
    """Instances of the other admission processes that the registry lists; None: it was never read."""
    registered: bool
    """It lists this one."""
    workers: bool
    """A worker of the pool reports here."""
    listed: bool
    """The registry lists workers of the pool."""

    @property
    def cut_off(self) -> bool:
        """There are workers, but not for this process; another one may reach them."""
        return self.listed and not self.workers and bool(self.others)


@dataclass(slots=True)
class _Term:
    epoch: int = 0
    owner: str = ""
    since: float = -math.inf  # when this process heard of it, if it knew of an older one
    mine: bool = False
    alone: float | None = None  # while it is ours: since when no worker is here


class Ownership:
    """The newest term of each pool, as far as this process knows. All `now` are monotonic seconds of one clock."""

    def __init__(self, instance: str, *, tenure: float, patience: float, draw: Callable[[int], int]) -> None:
        """:param instance: this process.

        :param tenure: seconds that a term lasts before another process takes the pool because the owner seems gone.
        :param patience: seconds without any worker, while others have some, after which a pool is given up.
        :param draw: so many random bits.
        """
        self.instance = instance
        self._tenure = tenure
        self._patience = patience
        self._draw = draw
        self._terms: dict[str, _Term] = {}

    def epoch(self, pool: str) -> int:
        """The term in which this process owns the pool; 0: it does not."""
        term = self._terms.get(pool)
        return term.epoch if term is not None and term.mine else 0

    def newest(self, pool: str) -> int:
        """The newest term that it has heard of, whoever's; 0: none."""
        term = self._terms.get(pool)
        return term.epoch if term is not None else 0

    @property
    def mine(self) -> list[str]:
        """The pools that it owns."""
        return [pool for pool, term in self._terms.items() if term.mine]

    def told(self, pool: str, epoch: int, owner: str, now: float) -> bool:
        """A worker told the newest term that it has heard of. True when it is a newer one of another process, or of
        one before this one of the same name: this process does not own the pool (any more)."""
        term = self._terms.setdefault(pool, _Term())
        if epoch <= term.epoch:
            return False
        self._terms[pool] = _Term(epoch, owner, now if term.epoch else -math.inf)
        return True

    def ask(self, pool: str, world: World, now: float, *, beyond: int = 0) -> Owns | Elsewhere:
        """Whether this process is to decide for the pool; `beyond` is a term whose owner could not serve the asker."""
        term = self._terms.get(pool) or _Term()
        if term.mine:
            return Owns.DECIDE
        if world.cut_off:
            return Elsewhere(home(pool, world.others or ()), term.epoch)
        if term.owner in ("", self.instance):
            return Owns.CLAIM
        gone = world.others is not None and term.owner not in world.others
        # Two that take each other for gone, or of which gateways reach one each, must not take the pool in turns
        # faster than workers and gateways can follow.
        if (gone or beyond == term.epoch) and now - term.since >= self._tenure:
            return Owns.CLAIM
        return Elsewhere(term.owner, term.epoch)

    def at_home(self, pool: str, world: World) -> bool:
        """Is this the process that is to own the pool when nothing speaks against it? Never while the registry lists
        others and not this one: they take it for gone."""
        if world.cut_off or (world.others and not world.registered):
            return False
        return home(pool, {self.instance, *(world.others or ())}) == self.instance

    def claim(self, pool: str, now: float) -> int:
        """Begins a term of this process; its number."""
        newest = self._terms.get(pool) or _Term()
        number = (newest.epoch >> _LOW_BITS) + 1
        epoch = min(number << _LOW_BITS | self._draw(_LOW_BITS), _MOST)
        self._terms[pool] = _Term(epoch, self.instance, now, mine=True)
        return epoch

    def useless(self, pool: str, world: World, now: float) -> bool:
        """Ends this process's term, and says so, when it has long had no worker that others may have."""
        term = self._terms[pool]
        if not world.cut_off:
            term.alone = None
            return False
        if term.alone is None:
            term.alone = now
        if now - term.alone < self._patience:
            return False
        self._terms[pool] = _Term(term.epoch, "", term.since)
        return True


def home(pool: str, instances: Collection[str]) -> str:
    """The process on which a pool is at home: one that comes or goes moves no other's pools (rendezvous hashing).

    :raises ValueError: there is none.
    """
    return max(instances, key=lambda each: (blake2b(f"{pool}/{each}".encode(), digest_size=8).digest(), each))
