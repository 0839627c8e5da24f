"""How far a fair queue's service has come."""

from __future__ import annotations

from collections import OrderedDict

_VERSIONS = 64  # remembered


class Levels:
    """Virtual time: the counters at which service was last given, of all and of each version, which has workers of its
    own."""

    __slots__ = ("_of_all", "_of_versions")

    def __init__(self) -> None:
        self._of_all = 0.0
        self._of_versions: OrderedDict[str, float] = OrderedDict()

    def at(self, version: str) -> float:
        """Of a version that nobody was served of, where it is to all others."""
        return self._of_versions.get(version, self._of_all)

    def lowest(self) -> float:
        """Of any version."""
        return min(self._of_versions.values(), default=self._of_all)

    def served(self, counter: float, version: str) -> None:
        """Service was given at this counter."""
        self._of_all = self._of_versions[version] = counter
        self._of_versions.move_to_end(version)
        if len(self._of_versions) > _VERSIONS:
            self._of_versions.popitem(last=False)

    def copy(self) -> Levels:
        """As they are now."""
        copied = Levels()
        copied._of_all, copied._of_versions = self._of_all, self._of_versions.copy()
        return copied
