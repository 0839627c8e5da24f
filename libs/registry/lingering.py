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
TOGETHER = 10.0
"""Times as long for all while most of them are silent: then it is not they that are gone but the way on which they are
heard, such as a mesh's only door that is being replaced, and that takes longer."""
_MANY = 4
"""Fewer are no sign of that."""


class Lingering:
    """Deletions that are held back, and since when: monotonic seconds, told by the caller."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}
        """Key → when it ended; the first is the next whose deletion counts."""
        self._known = 0
        """Endpoints that there are, those that are held back among them."""

    @property
    def next(self) -> float | None:
        """When the next deletion counts, unless others end or come back; None: none is held back."""
        since = next(iter(self._since.values()), None)
        return None if since is None else since + self._patience

    @property
    def _patience(self) -> float:
        most = len(self._since) >= _MANY and 2 * len(self._since) > self._known
        return self._seconds * (TOGETHER if most else 1)

    def sift(self, snapshot: RegistrySnapshot, events: Iterable[WatchEvent], now: float) -> list[WatchEvent]:
        """The events that count at once. Of an endpoint that has said that it leaves, all do: it is in no snapshot.

        :param snapshot: before the events.
        """
        counting = []
        for event in events:
            if event.value is not None:
                self._since.pop(event.key, None)
            elif event.key in self._since or _there(snapshot, event.key):
                self._since.setdefault(event.key, now)
                self._known = len(snapshot.endpoints)
                continue
            counting.append(event)
        return counting

    def over(self, revision: int, now: float) -> list[WatchEvent]:
        """The deletions whose time has come."""
        patience = self._patience
        keys = [key for key, since in self._since.items() if since + patience <= now]
        for key in keys:
            del self._since[key]
        self._known -= len(keys)
        return [WatchEvent(key, None, revision) for key in keys]

    def again(self, now: float) -> None:
        """The time of all begins anew: nobody could have come back."""
        self._since = dict.fromkeys(self._since, now)


def _there(snapshot: RegistrySnapshot, key: str) -> bool:
    kind, name = located(key) or (None, "")
    return kind is not None and kind.message is registry_pb2.Endpoint and kind.entry(name) in snapshot.endpoints
