"""What was used within the last minute (or any other period): pure, integer nanoseconds, no clock of its own.

A use counts from the moment it is charged until it is more than one period old, in any period of that length, wherever
it begins; not in calendar minutes, between which twice the limit could pass. Uses are kept in slots of a sixtieth of
the period, and a slot leaves when its youngest use may leave: a use counts for up to a slot too long and never too
short. The rounding is against the tenant, at most 1/60 of the period.

Every caller passes `now`, nanoseconds on any one clock that does not run backwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MINUTE_NS = 60_000_000_000
"""Requests and tokens are limited per minute."""
DAY_NS = 86_400_000_000_000
"""Spend is limited per day, unless said otherwise."""
NEVER = -1
"""A wait that no time ends: more is asked for than the limit."""
SLOTS = 60
"""Per period."""

Part = tuple[str, str]
"""Who decided a use: a replica and which life of it."""
LOCAL: Part = ("", "")
"""The only part where there are no replicas."""

_NEVER_NS = 1 << 62


class Use(NamedTuple):
    """A slot at rest."""

    left_ns: int
    """Until it leaves."""
    amount: int


class Window:
    """Use over a sliding period, by who decided it: each replica's part has one writer, so two replicas' views of the
    whole can be joined part by part without counting anything twice."""

    __slots__ = ("_first", "_newest", "_newest_ends", "_newest_part", "_parts", "_slot", "period", "total")

    def __init__(self, period: int = MINUTE_NS) -> None:
        """:raises ValueError: a period below one nanosecond."""
        if period < 1:
            raise ValueError("a period lasts at least a nanosecond")
        self.period = period
        """Nanoseconds."""
        self.total = 0
        """Sum of all slots, also of those that should have left: read `used`."""
        self._slot = -(-period // SLOTS)
        self._parts: dict[Part, deque[list[int]]] = {}  # [leaves at, amount], oldest first
        self._first = _NEVER_NS  # nothing leaves before
        self._newest: list[int] = [0, 0]
        self._newest_part = LOCAL
        self._newest_ends = 0
        """Until then what this part is charged is of that slot."""

    def used(self, now: int) -> int:
        """Units used within the last period."""
        if self._first <= now:
            self._purge(now)
        return self.total

    def charge(self, amount: int, now: int, part: Part = LOCAL) -> None:
        """Counts `amount` units from now on."""
        if not amount:
            return
        if now < self._newest_ends and part is self._newest_part:
            self._newest[1] += amount
            self.total += amount
            return
        ends = (now // self._slot + 1) * self._slot
        leaves = ends + self.period
        queue = self._parts.get(part)
        if queue is None:
            queue = self._parts[part] = deque()
        if queue and queue[-1][0] >= leaves:
            queue[-1][1] += amount
        else:
            queue.append([leaves, amount])
            if leaves < self._first:
                self._first = leaves
        self.total += amount
        self._newest, self._newest_part, self._newest_ends = queue[-1], part, ends

    def void(self, amount: int, at: int, part: Part) -> None:
        """Takes back what `part` charged at `at`, as far as it still counts.

        It is taken from its slot, and where that does not hold so much, from older ones of the part: what remains
        never counts for a shorter time than it should.
        """
        queue = self._parts.get(part)
        if queue is None or not amount:
            return
        newest = (at // self._slot + 1) * self._slot + self.period
        for slot in reversed(queue):
            if slot[0] <= newest:
                taken = min(amount, slot[1])
                slot[1] -= taken
                self.total -= taken
                amount -= taken
                if not amount:
                    return

    def wait(self, amount: int, now: int) -> int:
        """Nanoseconds until at least `amount` of the used units have left, when nothing is charged meanwhile; `NEVER`
        when there are not so many."""
        if amount <= 0:
            return 0
        if self.used(now) < amount:
            return NEVER
        slots: Iterable[list[int]]
        if len(self._parts) == 1:
            (slots,) = self._parts.values()
        else:
            slots = sorted(slot for queue in self._parts.values() for slot in queue)
        for leaves, units in slots:
            amount -= units
            if amount <= 0:
                return leaves - now
        return NEVER

    def reset(self, now: int) -> int:
        """Nanoseconds until nothing of it counts any more."""
        if not self.used(now):
            return 0
        if len(self._parts) == 1:
            (queue,) = self._parts.values()
            return queue[-1][0] - now
        return max(queue[-1][0] for queue in self._parts.values()) - now

    def rescale(self, period: int) -> None:
        """Makes the period another; what still counts then counts that much longer or shorter."""
        if period == self.period:
            return
        change = period - self.period
        for queue in self._parts.values():
            for slot in queue:
                slot[0] += change
        self.period = period
        self._slot = -(-period // SLOTS)
        self._newest_ends = 0
        self._look()

    def state(self, now: int) -> dict[Part, tuple[Use, ...]]:
        """The slots by part."""
        self.used(now)
        return {part: tuple(Use(slot[0] - now, slot[1]) for slot in queue) for part, queue in self._parts.items()}

    def replace(self, part: Part, uses: Iterable[Use], now: int) -> None:
        """Makes these the slots of a part."""
        queue = self._parts.pop(part, None)
        self._newest_ends = 0
        if queue is not None:
            self.total -= sum(slot[1] for slot in queue)
        fresh = deque([now + use.left_ns, use.amount] for use in sorted(uses) if use.left_ns > 0 and use.amount > 0)
        if fresh:
            self._parts[part] = fresh
            self.total += sum(slot[1] for slot in fresh)
        self._look()

    def _purge(self, now: int) -> None:
        for part, queue in list(self._parts.items()):
            while queue and queue[0][0] <= now:
                self.total -= queue.popleft()[1]
            if not queue:
                del self._parts[part]
        self._look()

    def _look(self) -> None:
        self._first = min((queue[0][0] for queue in self._parts.values()), default=_NEVER_NS)
