"""Where a tenant's requests may go: the one filter of routes, moves, fallbacks and mirrors. Pure.

A process's region is what its certificate says; the registry's door takes no endpoint that says otherwise. A tenant's
`allowed_regions` bind everything that sees its words:

- **workers**, by their zones, since that is what routes are made of. A zone of which any endpoint is in a region that
  is not allowed, or in none, is left out whole: which of its workers is taken, admission decides;
- **the gateway** that was asked, and **safety** and the **audit log**, of which any process may be asked: one of them
  outside, and nothing of the request goes on;
- **predictors**: Envoy picks one without looking at tenants, so the edge sends a bound tenant to them only while all of
  them are within.

Regions bind who has named some: to other tenants this costs one look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot

READERS = frozenset({"safety", "audit"})
"""Services that see a request's words or its record, whichever process of them is asked."""
PREDICTOR_SERVICE = "predictor"
_RETRY_SECONDS = 5.0
"""What is away may come back; what was never there is the operator's business."""


@dataclass(frozen=True, slots=True)
class Residency:
    """Which regions there are, of one registry snapshot."""

    of_zone: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Zone → the regions of its endpoints; "" is none."""
    readers: frozenset[str] = frozenset()
    """The regions of READERS."""
    predictors: frozenset[str] = frozenset()
    """The regions of those that answer unary predictions, among whom Envoy chooses without looking at tenants."""

    @classmethod
    def of(cls, snapshot: RegistrySnapshot) -> Residency:
        """Gathered from all endpoints: O(endpoints)."""
        zones: dict[str, set[str]] = {}
        readers: set[str] = set()
        predictors: set[str] = set()
        for (service, _), endpoint in snapshot.endpoints.items():
            zones.setdefault(endpoint.zone, set()).add(endpoint.region)
            if service in READERS:
                readers.add(endpoint.region)
            elif service == PREDICTOR_SERVICE:
                predictors.add(endpoint.region)
        of_zone = {zone: frozenset(found) for zone, found in zones.items()}
        return cls(of_zone, frozenset(readers), frozenset(predictors))

    def enter(self, regions: Collection[str], own: str) -> frozenset[str]:
        """The regions that a request may go to; empty: all.

        :param regions: of its tenant.
        :param own: the zone of the gateway that was asked; empty where that is not to be judged.
        :raises WeirError: REGION_NOT_ALLOWED: it stands outside of them, or a reader does.
        """
        if not regions:
            return frozenset()
        allowed = frozenset(regions)
        if own and not self.stands_in(own, allowed):
            raise refusal("This gateway is in none of the regions in which you may be served.")
        if not self.readers <= allowed:
            raise refusal("What every request passes through is not only in regions in which you may be served.")
        return allowed

    def stands_in(self, zone: str, allowed: frozenset[str]) -> bool:
        """Whether everything of a zone is in allowed regions; of one that nobody is known in, nothing is."""
        found = self.of_zone.get(zone, frozenset())
        return bool(found) and found <= allowed

    def within(self, zones: tuple[str, ...], allowed: frozenset[str]) -> tuple[str, ...]:
        """Those of the zones that are allowed, in their order.

        :raises WeirError: REGION_NOT_ALLOWED: none is left. Never an empty answer: to admission that would mean all.
        """
        if not allowed:
            return zones
        left = tuple(zone for zone in zones if self.stands_in(zone, allowed))
        if not left:
            raise refusal("No worker of this model is in a region in which you may be served.")
        return left


def refusal(message: str) -> WeirError:
    """The typed refusal."""
    return WeirError(Reason.REGION_NOT_ALLOWED, message, limit="allowed_regions", retry_after=_RETRY_SECONDS)
