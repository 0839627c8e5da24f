"""Resolution of a model name on one registry snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.routing.assignment import Target, assign

WORKER_SERVICE = "worker"
"""The service name under which workers register their endpoints."""

Arrange = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""The zones of a version, best first, as breakers will have them: see libs.breaker.BreakerBoard.arrange."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What is asked: `model` is an alias or a pinned "name@version"; an empty `sticky_key` falls back to the tenant."""

    tenant: str
    model: str
    sticky_key: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes. `zones` are best first and hold only zones with live workers of the version; empty when
    the snapshot knows none, which leaves the choice to admission."""

    model_version: str
    arm: str
    pool: str
    tier: str
    zones: tuple[str, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as listed to a tenant. `id` is what to ask for; `model_version` what the tenant would get now."""

    id: str
    model_version: str
    tier: str
    context_length: int
    created_at: float  # Unix seconds of the version's registration


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """What resolution needs of a snapshot, gathered once per snapshot so that a request costs a few look-ups."""

    snapshot: RegistrySnapshot
    targets: Mapping[str, tuple[Target, ...]]
    """By alias."""
    zones: Mapping[str, tuple[str, ...]]
    """Version → zones with live workers that have it ready, sorted."""

    @classmethod
    def of(cls, snapshot: RegistrySnapshot) -> RoutingTable:
        """Gathers the table; O(aliases + endpoints)."""
        zones: dict[str, set[str]] = {}
        for (service, _), endpoint in snapshot.endpoints.items():
            if service == WORKER_SERVICE:
                for version in endpoint.model_versions:
                    zones.setdefault(version, set()).add(endpoint.zone)
        return cls(
            snapshot=snapshot,
            targets={
                name: tuple(Target(target.model_version, target.weight, target.arm) for target in alias.targets)
                for name, alias in snapshot.aliases.items()
            },
            zones={version: tuple(sorted(found)) for version, found in zones.items()},
        )

    def resolve(self, request: RouteRequest, arrange: Arrange | None = None) -> Route:
        """Chooses version, arm, pool, tier and zones.

        `arrange` is asked once, when the version is known. Should it leave no zone, all stay.

        :raises WeirError: MODEL_NOT_FOUND when the name is neither an alias nor a registered version, or when the
            alias points to nothing that is registered.
        """
        target = self._target(request)
        version = self.snapshot.model_versions.get(target.model_version)
        if version is None:
            raise _not_found(request.model)
        zones = _own_first(self.zones.get(target.model_version, ()), request.zone)
        if arrange is not None and zones:
            zones = arrange(target.model_version, zones) or zones
        return Route(
            model_version=target.model_version,
            arm=target.arm,
            pool=version.pool,
            tier=version.tier,
            zones=zones,
            revision=self.snapshot.revision,
        )

    def list_models(self, tenant: str) -> tuple[ListedModel, ...]:
        """Everything that the tenant may ask for, by id: aliases first, then pinned versions.

        An alias is listed with the version that the tenant's requests without a sticky key go to. Aliases that
        resolve to nothing are left out.
        """
        listed: list[ListedModel] = []
        for name in sorted(self.targets):
            target = assign(name, self.targets[name], tenant)
            if target is not None and target.model_version in self.snapshot.model_versions:
                listed.append(self._listed(name, target.model_version))
        listed.extend(self._listed(name, name) for name in sorted(self.snapshot.model_versions))
        return tuple(listed)

    def _target(self, request: RouteRequest) -> Target:
        if "@" in request.model:
            return Target(request.model, 100)
        targets = self.targets.get(request.model)
        target = assign(request.model, targets, request.sticky_key or request.tenant) if targets else None
        if target is None:
            raise _not_found(request.model)
        return target

    def _listed(self, name: str, version_name: str) -> ListedModel:
        version = self.snapshot.model_versions[version_name]
        return ListedModel(
            id=name,
            model_version=version_name,
            tier=version.tier,
            context_length=version.context_length,
            created_at=version.created_at.seconds + version.created_at.nanos * 1e-9,
        )


def resolve(snapshot: RegistrySnapshot, request: RouteRequest, arrange: Arrange | None = None) -> Route:
    """`RoutingTable.of(snapshot).resolve(request, arrange)`; on hot paths keep the table per snapshot."""
    return RoutingTable.of(snapshot).resolve(request, arrange)


def list_models(snapshot: RegistrySnapshot, tenant: str) -> tuple[ListedModel, ...]:
    """`RoutingTable.of(snapshot).list_models(tenant)`."""
    return RoutingTable.of(snapshot).list_models(tenant)


def _own_first(zones: tuple[str, ...], own: str) -> tuple[str, ...]:
    """The caller's zone first if it is there, then the others in cyclic order from it.

    Cyclic, so that zones spill into different neighbours instead of all into the alphabetically first one.
    """
    if len(zones) < 2:
        return zones
    after = [zone for zone in zones if zone > own]
    before = [zone for zone in zones if zone < own]
    return ((own,) if own in zones else ()) + tuple(after) + tuple(before)


def _not_found(model: str) -> WeirError:
    # The name comes from the caller and goes back to the same caller; cut so that errors stay small.
    return WeirError(Reason.MODEL_NOT_FOUND, f"There is no model {model[:100]!r}.", limit="model")
