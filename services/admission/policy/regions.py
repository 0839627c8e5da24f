"""A zone stands in one region: routes of tenants that are bound to regions rely on it, since they name zones. Pure."""

from __future__ import annotations

from collections import Counter

from libs.errors import Reason, WeirError


class ZoneRegions:
    """The regions of the workers that report here, by zone."""

    def __init__(self) -> None:
        self._workers: dict[str, Counter[str]] = {}

    def join(self, zone: str, region: str) -> None:
        """A worker with this certificate has come.

        :raises WeirError: PERMISSION_DENIED: the zone's others are of another region. Which of them is wrong nobody can
            tell here; that none is taken in whom no route has weighed, everybody can rely on.
        """
        found = self._workers.setdefault(zone, Counter())
        if found and region not in found:
            raise WeirError(Reason.PERMISSION_DENIED, "the zone's other workers are in another region", limit="region")
        found[region] += 1

    def leave(self, zone: str, region: str) -> None:
        """One that had joined has gone."""
        found = self._workers[zone]
        found[region] -= 1
        if not found[region]:
            del self._workers[zone]
