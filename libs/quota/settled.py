"""Ids that were settled, for a while, and what was charged for each."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from libs.quota.types import SettledId
from libs.quota.window import Part

_MOST_LAPSED = 4096
"""All that one gateway runs, by default."""
_RETENTIONS = 10
"""For how long they wait at a replica that does not speak for their tenant: whoever does has said so long ago."""
Key = tuple[str, str]
"""Tenant and request id."""


class Charge(NamedTuple):
    """What was charged for an id."""

    at: int
    ended: bool
    """Nobody settled it: its lease ended, and what it reserved was charged to whoever opened it."""
    part: Part
    """Who decided it."""
    model: str
    version: str
    tokens: int
    spend: int

    def beats(self, other: Charge) -> bool:
        """Where two replicas charged the same id, this is the one that counts: the same one wherever both are known."""
        if self.ended != other.ended:
            return other.ended
        return self.part < other.part


class SettledIds:
    """A memory by time, so that a repeated settle changes nothing.

    :param retention_ns: how long an id is remembered, however many there are: longer than a settle is repeated.
    """

    __slots__ = ("_charges", "_lapsed", "_order", "_retention", "first", "untold")

    def __init__(self, retention_ns: int) -> None:
        self._retention = retention_ns
        self._charges: dict[Key, Charge] = {}
        self._order: deque[tuple[int, Key]] = deque()
        self.first = 0
        """The first one's place; it only grows."""
        self._lapsed: dict[Key, tuple[int, Charge]] = {}
        """Forgotten without anybody having settled them, since when: what they used stays unknown. At most
        `_MOST_LAPSED`, until they are `recorded`."""
        self.untold = 0
        """How many more there were."""

    def __len__(self) -> int:
        return len(self._charges)

    def get(self, key: Key) -> Charge | None:
        """What was charged; None for an id that is not known."""
        return self._charges.get(key)

    def put(self, key: Key, charge: Charge, now: int) -> None:
        """Remembers an id, or what is charged for it instead of something else, from the charge's time on."""
        self._charges[key] = charge
        self._lapsed.pop(key, None)
        self._order.append((charge.at, key))
        if self._order[0][0] < now - self._retention:
            self.purge(now)

    def forget(self, key: Key) -> None:
        """Its lease is open again."""
        self._charges.pop(key, None)
        self._lapsed.pop(key, None)

    def lapsed(self, now: int) -> list[tuple[Key, Charge]]:
        """Those that were forgotten without anybody having settled them and that are not `recorded`: what they used
        stays unknown. Each is told at least once."""
        self.purge(now)
        told = [(key, charge) for key, (_, charge) in self._lapsed.items()]
        for key, (since, _) in list(self._lapsed.items()):
            if since < now - _RETENTIONS * self._retention:
                del self._lapsed[key]
        return told

    def recorded(self, key: Key) -> None:
        """It has a record by now, made here or elsewhere."""
        self._lapsed.pop(key, None)
        charge = self._charges.get(key)
        if charge is not None and charge.ended:
            del self._charges[key]

    def purge(self, now: int) -> None:
        """Forgets what is old."""
        order, oldest = self._order, now - self._retention
        while order and order[0][0] < oldest:
            at, key = order.popleft()
            self.first += 1
            charge = self._charges.get(key)
            if charge is not None and charge.at <= at:
                del self._charges[key]
                if not charge.ended:
                    continue
                if len(self._lapsed) < _MOST_LAPSED:
                    self._lapsed[key] = now, charge
                else:
                    self.untold += 1

    @property
    def places(self) -> int:
        """Ids and those that were put a second time, in the order in which they were."""
        return len(self._order)

    def state(self, start: int, stop: int, now: int) -> tuple[SettledId, ...]:
        """Those remembered from one place up to another, at rest."""
        charges, first = self._charges, self.first
        ids = []
        for at, key in islice(self._order, max(0, start - first), max(0, stop - first)):
            charge = charges.get(key)
            if charge is not None and charge.at == at:
                ids.append(SettledId._make((*key, now - at, *charge[1:])))
        return tuple(ids)
