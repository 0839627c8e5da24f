"""Ids that were settled, for a while."""

from __future__ import annotations

from collections import deque

from libs.quota.types import SettledId

Key = tuple[str, str]
"""Tenant and request id."""


class SettledIds:
    """A bounded memory, so that a repeated settle changes nothing.

    :param retention_ns: how long an id is remembered.
    :param most: the most that are remembered; the oldest go first.
    """

    def __init__(self, retention_ns: int, most: int) -> None:
        self._retention = retention_ns
        self._most = most
        self._keys: dict[Key, bool] = {}
        self._order: deque[tuple[int, Key]] = deque()

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def ended(self, key: Key) -> bool:
        """Whether the id is remembered as one that nobody settled."""
        return self._keys.get(key, False)

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Key, now: int, *, ended: bool = False) -> None:
        """Remembers an id from `now` on; one that is remembered already stays as it is.

        :param ended: nobody settled it: its lease ended, and what it reserved was charged.
        """
        if key in self._keys:
            return
        self._keys[key] = ended
        order = self._order
        order.append((now, key))
        oldest = now - self._retention
        while order and (order[0][0] < oldest or len(order) > self._most):
            self._keys.pop(order.popleft()[1], None)

    def state(self, now: int) -> tuple[SettledId, ...]:
        """All of them, at rest."""
        return tuple(SettledId(*key, now - at, self._keys[key]) for at, key in self._order)
