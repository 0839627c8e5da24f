"""One pool's credits at one gateway: how many to ask for, and which one a request may run on."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_MEMORY = 1.0  # seconds that a kind's rate remembers
_OFTEN = 2.5  # requests in that time, fading, from which on most credits are used before they run out
_AHEAD = 0.15  # seconds until what is used is replaced: it is told lazily, and the answer may wait for company too
_MOST = 16
_KINDS = 256
_HASHES = 8192
_HOLDERS = 4  # workers remembered for each


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request needs of a credit."""

    kind: Hashable
    """Equal for requests that may run on one another's: version, class, zones."""
    prompt_tokens: int
    max_output_tokens: int
    prefix_hashes: Sequence[int] = ()
    prefix_block: int = 0
    ttft: float = math.inf
    """Seconds in which its first token is due."""


@dataclass(frozen=True, slots=True, eq=False)
class Credit(Generic[T]):
    """A grant ahead of its request."""

    what: T
    worker: str
    prompt_tokens: int
    max_output_tokens: int
    until: float
    """Not used from then on."""
    indifferent_tokens: int = 0
    """So much of a prompt may be cached, nobody knows where, without its mattering to placement."""
    first_token: float = 0.0
    """Seconds to the first token of a prompt as long as the cap."""


class _Kind(Generic[T]):
    __slots__ = ("asked", "at", "credits", "recent")

    def __init__(self) -> None:
        self.credits: deque[Credit[T]] = deque()
        self.asked = 0  # and not answered yet
        self.recent = 0.0  # requests, fading
        self.at = 0.0


class Purse(Generic[T]):
    """All kinds of one pool. `now` is one monotonic clock's seconds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind[T]] = OrderedDict()
        self._out: list[T] = []  # run out
        self._placed: OrderedDict[int, tuple[str, ...]] = OrderedDict()  # a prefix's hash → who got it, the last first

    def __len__(self) -> int:
        """Credits held, run out or not."""
        return sum(len(kind.credits) for kind in self._kinds.values())

    def take(self, ask: Ask, now: float) -> T | None:
        """The oldest credit that suits the request, once; None when it should ask: none is large enough, or on a worker
        that may have as much of its prefix as any other."""
        kind = self._kinds.get(ask.kind)
        if kind is None:
            return None
        credits = kind.credits
        while credits and credits[0].until <= now:
            self._out.append(credits.popleft().what)
        if not credits:
            return None
        holders, unknown = self._known(ask)
        for credit in credits:
            if (
                ask.prompt_tokens <= credit.prompt_tokens
                and ask.max_output_tokens <= credit.max_output_tokens
                and credit.first_token <= ask.ttft
                and unknown <= credit.indifferent_tokens
                and (not holders or credit.worker in holders)
            ):
                credits.remove(credit)
                return credit.what
        return None

    def wanted(self, ask: Ask, now: float) -> int:
        """A request of this kind came: how many credits to ask for with it, so that the next find one. They count as
        asked for until `put`."""
        kind = self._kinds.get(ask.kind)
        if kind is None:
            kind = self._kinds[ask.kind] = _Kind()
            if len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(ask.kind)
        kind.recent = 1.0 + kind.recent * math.exp((kind.at - now) / _MEMORY)
        kind.at = now
        if kind.recent < _OFTEN:
            return 0
        target = min(_MOST, math.ceil(_AHEAD / _MEMORY * kind.recent))
        count = max(0, target - len(kind.credits) - kind.asked)
        kind.asked += count
        return count

    def put(self, ask: Ask, asked: int, credits: Iterable[Credit[T]] = ()) -> None:
        """The answer to `wanted`, which may be nothing."""
        kind = self._kinds.get(ask.kind)
        if kind is not None:
            kind.asked -= asked
            kind.credits.extend(credits)

    def placed(self, ask: Ask, worker: str) -> None:
        """The request went to this worker, which has its prefix from now on."""
        memory = self._placed
        for value in ask.prefix_hashes:
            before = memory.get(value, ())
            if worker not in before:
                memory[value] = (worker, *before[: _HOLDERS - 1])
            memory.move_to_end(value)
        while len(memory) > _HASHES:
            memory.popitem(last=False)

    def low(self, ask: Ask) -> bool:
        """Fewer are left than were asked for: there is no time to lose."""
        kind = self._kinds.get(ask.kind)
        return kind is not None and len(kind.credits) < kind.asked

    def run_out(self) -> list[T]:
        """Those that `take` found to have run out since the last call, to be given back."""
        out, self._out = self._out, []
        return out

    def empty(self) -> list[T]:
        """All that is left, to be given back."""
        left = [credit.what for kind in self._kinds.values() for credit in kind.credits] + self.run_out()
        for kind in self._kinds.values():
            kind.credits.clear()
        return left

    def _known(self, ask: Ask) -> tuple[tuple[str, ...], int]:
        """The workers that are known to have most of the prompt, and how many tokens of it, in whole blocks, nobody is
        known to have: another gateway may have sent those anywhere."""
        hashes = ask.prefix_hashes
        for depth in range(len(hashes), 0, -1):
            holders = self._placed.get(hashes[depth - 1])
            if holders:
                return holders, (len(hashes) - depth) * ask.prefix_block
        return (), len(hashes) * ask.prefix_block
