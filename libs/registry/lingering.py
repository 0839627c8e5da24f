"""Endpoints whose keys ended without a word: each is kept for a while, in which its process may come back.

A key ends with its lease when the process is dead, and also when it could not prolong it in time: etcd, or the way to
it, stood still for longer than the lease. Then the processes of a whole mesh end in the same moment, and register again
a little later; whoever believed the deletions would refuse everything in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.registry.v1 import registry_pb2

from libs.registry.ports import WatchEvent
from libs.resources.codec import located
from libs.resources.snapshot import RegistrySnapshot

LINGER = 3.0
"""Seconds. A process whose lease is lost tries again every half a second; a dead one is known to be unreachable by
whoever calls it long before."""


class Lingering:
    """Deletions that are held back, and until when: monotonic seconds, told by the caller."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        """Key → when its deletion counts; the first is the next."""

    @property
    def next(self) -> float | None:
        """When the next deletion counts; None: none is held back."""
        return next(iter(self._until.values()), None)

    def sift(self, snapshot: RegistrySnapshot, events: Iterable[WatchEvent], now: float) -> list[WatchEvent]:
        """The events that count at once. Of an endpoint that has said that it leaves, all do: it is in no snapshot.

        :param snapshot: before the events.
        """
        counting = []
        for event in events:
            if event.value is not None:
                self._until.pop(event.key, None)
            elif event.key in self._until or _there(snapshot, event.key):
                self._until.setdefault(event.key, now + self._seconds)
                continue
            counting.append(event)
        return counting

    def over(self, revision: int, now: float) -> list[WatchEvent]:
        """The deletions whose time has come."""
        keys = [key for key, until in self._until.items() if until <= now]
        for key in keys:
            del self._until[key]
        return [WatchEvent(key, None, revision) for key in keys]

    def again(self, now: float) -> None:
        """The time of all begins anew: nobody could have come back."""
        self._until = dict.fromkeys(self._until, now + self._seconds)


def _there(snapshot: RegistrySnapshot, key: str) -> bool:
    kind, name = located(key) or (None, "")
    return kind is not None and kind.message is registry_pb2.Endpoint and kind.entry(name) in snapshot.endpoints
