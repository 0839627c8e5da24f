"""A bounded map from credential digests to verdicts: least recently used out first, each with an end."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class VerdictCache(Generic[V]):
    """Holds at most `size` values, each until its own end (seconds on the caller's clock).

    :raises ValueError: size below 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("a cache holds at least one entry")
        self._size = size
        self._entries: OrderedDict[bytes, tuple[V, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: bytes, now: float) -> V | None:
        """The value, if it is there and its end has not come."""
        entry = self._entries.get(digest)
        if entry is None:
            return None
        if now >= entry[1]:
            del self._entries[digest]
            return None
        self._entries.move_to_end(digest)
        return entry[0]

    def put(self, digest: bytes, value: V, until: float) -> None:
        """Adds or replaces a value."""
        self._entries[digest] = (value, until)
        self._entries.move_to_end(digest)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
