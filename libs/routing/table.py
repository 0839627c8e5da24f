"""Resolution of a model name on one registry snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from libs.authority.models import ModelAccess
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, tier_of
from libs.routing.assignment import Layout, Target, bucket_of, lay_out
from libs.routing.residency import PREDICTOR_SERVICE, Residency
from libs.routing.split import BUCKETS, Placement, Split, outside, place, split_of

WORKER_SERVICE = "worker"
"""The service name under which workers register their endpoints."""

Arrange = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""The zones of a version, best first, as breakers will have them: see libs.breaker.BreakerBoard.arrange."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What is asked: `model` is an alias or a pinned "name@version". An explicit `sticky_key` counts as the session."""

    tenant: str
    model: str
    sticky_key: str = ""
    zone: str = ""
    user: str = ""
    """The tenant's user, as the caller names them."""
    session: str = ""
    """The session, likewise."""
    request_id: str = ""
    """Decides whether the request is mirrored; without one it is not."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where the mirrored copy of a request goes. `zones` as in `Route`, but breakers are not asked."""

    model_version: str
    arm: str
    pool: str
    tier: str
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes. `zones` are best first and hold only zones with live workers of the version; empty when
    the snapshot knows none, which leaves the choice to admission."""

    model_version: str
    arm: str
    """In a rollout "baseline" or the arm's name; else what the alias calls its target, mostly ""."""
    pool: str
    tier: str
    zones: tuple[str, ...]
    revision: int
    rollout_id: str = ""
    """The rollout that the caller takes part in; empty outside rollouts and outside of their blast radius."""
    step: int = 0
    """The rollout's step."""
    mirror: Mirror | None = None
    """Answer the request a second time, for comparison."""


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
    layouts: Mapping[str, Layout | None]
    """Alias → its own targets, without rollouts; None: no target has weight."""
    splits: Mapping[str, Split]
    """Alias → its rollout, where one is in force."""
    zones: Mapping[str, tuple[str, ...]]
    """Version → zones with live workers that have it ready, sorted."""
    tenants: frozenset[str] = field(default=frozenset(), repr=False)
    """Ids of registered tenants."""
    residency: Residency = field(default=Residency(), repr=False)
    """Which regions there are."""
    access: ModelAccess = field(default=ModelAccess(), repr=False)
    """Who may use which name; what a tenant may not use does not exist for it."""

    @classmethod
    def of(cls, snapshot: RegistrySnapshot, before: RoutingTable | None = None) -> RoutingTable:
        """Gathers the table: O(aliases + endpoints + tenants), with `before` O(what changed since that snapshot).

        :param before: any earlier table; what rests on unchanged collections is taken from it.
        """
        if before is None:
            before = cls(RegistrySnapshot(), {}, {}, {})
        old = before.snapshot
        layouts = before.layouts if snapshot.aliases is old.aliases else _layouts(snapshot, before)
        same = snapshot.endpoints is old.endpoints
        zones = before.zones if same else _zones(snapshot)
        residency = before.residency if same else Residency.of(snapshot)
        tenants = before.tenants
        if snapshot.tenants is not old.tenants and snapshot.tenants.keys() != tenants:
            tenants = frozenset(snapshot.tenants)
        access = ModelAccess.of(snapshot, before.access)
        return cls(snapshot, layouts, _splits(snapshot, tenants, before), zones, tenants, residency, access)

    def resolve(self, request: RouteRequest, arrange: Arrange | None = None) -> Route:
        """Chooses version, arm, pool, tier and zones.

        `arrange` is asked once, when the version is known. Should it leave no zone, all stay.

        :raises WeirError: MODEL_NOT_FOUND when the name is neither an alias nor a registered version, when the alias
            points to nothing that is registered, or when the tenant may not use it: nobody can tell which.
            REGION_NOT_ALLOWED when nothing that may serve the tenant is in its regions.
        """
        found = self._find(request)
        if found is None:
            raise _not_found(request.model)
        allowed = self.residency.enter(self._regions(request.tenant), request.zone)
        target, split = found
        version = self.snapshot.model_versions[target.model_version]
        mirror = None
        if split is not None and split.shadow_share:
            mirror = self._mirror(split.mirrored(request.request_id), request.zone, allowed)
        return Route(
            target.model_version,
            target.arm,
            version.pool,
            tier_of(version),
            self._zones_of(target.model_version, request.zone, allowed, arrange),
            self.snapshot.revision,
            split.rollout_id if split is not None else "",
            split.step if split is not None else 0,
            mirror,
        )

    def place(self, request: RouteRequest) -> Placement | None:
        """Where the caller stands under an alias, in basis points; `resolve` sends it to the same version.

        None for pinned versions, for names that are no alias of anything, and for those that the tenant may not use.
        """
        if not self.access.may_use(request.tenant, request.model):
            return None
        split = self.splits.get(request.model)
        if split is not None:
            return self._place_in(split, request)
        layout = self.layouts.get(request.model)
        if layout is None:
            return None
        bucket = bucket_of(request.model, _plain_key(request), BUCKETS)
        # Of b buckets in all, n of the 10,000 are in the same place: floor(floor(10000 x) b / 10000) = floor(b x).
        return Placement(layout.at(bucket * layout.total // BUCKETS), bucket)

    def list_models(self, tenant: str) -> tuple[ListedModel, ...]:
        """Everything that the tenant may ask for, by id: aliases first, then pinned versions."""
        names = (*sorted(self.layouts), *sorted(self.snapshot.model_versions))
        return tuple(found for name in names if (found := self.find_model(tenant, name)) is not None)

    def find_model(self, tenant: str, name: str) -> ListedModel | None:
        """A model as listed to a tenant: with the version that its requests without user or session go to; None where
        those would be refused."""
        found = self._find(RouteRequest(tenant, name))
        if found is None:
            return None
        listed = found[0].model_version
        version = self.snapshot.model_versions[listed]
        return ListedModel(
            id=name,
            model_version=listed,
            tier=tier_of(version),
            context_length=version.context_length,
            created_at=version.created_at.seconds + version.created_at.nanos * 1e-9,
        )

    def _find(self, request: RouteRequest) -> tuple[Target, Split | None] | None:
        """What the caller gets by this name, a registered version, and the rollout that it takes part in; None:
        nothing."""
        model, versions = request.model, self.snapshot.model_versions
        if not self.access.may_use(request.tenant, model):
            return None
        split = self.splits.get(model)
        if split is not None:
            placed = self._place_in(split, request)
            # An arm that is gone is nobody's; its callers get what is proven.
            target = placed.target if placed.target.model_version in versions else split.baseline
            part = split if placed.rollout_id else None
        else:
            target, part = self._target(request), None
        return (target, part) if target.model_version in versions else None

    def _place_in(self, split: Split, request: RouteRequest) -> Placement:
        """Outside the rollout for a tenant that one of its arms is not granted to."""
        if not self.access.may_meet(request.tenant, request.model, split.versions):
            return outside(split)
        return place(split, request.tenant, request.user, request.sticky_key or request.session)

    def _mirror(self, target: Target | None, zone: str, allowed: frozenset[str]) -> Mirror | None:
        version = self.snapshot.model_versions.get(target.model_version) if target is not None else None
        if target is None or version is None:
            return None
        # Breakers are not asked: a probe of theirs belongs to a request that somebody waits for.
        try:
            zones = self._zones_of(target.model_version, zone, allowed, None)
        except WeirError:
            return None  # nobody waits for a mirrored answer, so there is none
        return Mirror(target.model_version, target.arm, version.pool, tier_of(version), zones)

    def may_predict(self, tenant: str) -> bool:
        """Whether every predictor is in a region in which the tenant may be served."""
        regions = self._regions(tenant)
        return not regions or self.residency.predictors <= frozenset(regions)

    def elsewhere(self, tenant: str, pool: str) -> tuple[str, ...]:
        """Zones for a request that goes on in another pool than its version's own, as a fallback: those of the pool
        that are allowed; empty, which leaves the choice to admission, for a tenant that may be served anywhere.

        :raises WeirError: REGION_NOT_ALLOWED: none is.
        """
        allowed = self.residency.enter(self._regions(tenant), "")
        if not allowed:
            return ()
        workers = (each for key, each in self.snapshot.endpoints.items() if key[0] == WORKER_SERVICE)
        zones = tuple(sorted({each.zone for each in workers if each.pool == pool}))
        return self.residency.within(zones, allowed)

    def _regions(self, tenant: str) -> Collection[str]:
        known = self.snapshot.tenants.get(tenant)
        return known.allowed_regions if known is not None else ()

    def _zones_of(self, version: str, own: str, allowed: frozenset[str], arrange: Arrange | None) -> tuple[str, ...]:
        zones = self.residency.within(_own_first(self.zones.get(version, ()), own), allowed)
        if arrange is not None and zones:
            zones = arrange(version, zones) or zones
        return zones

    def _target(self, request: RouteRequest) -> Target:
        model = request.model
        layout = None if "@" in model else self.layouts.get(model)
        if layout is None:
            return Target(model, 100)
        if len(layout.targets) == 1:
            return layout.baseline
        return layout.at(bucket_of(model, _plain_key(request), layout.total))


def resolve(snapshot: RegistrySnapshot, request: RouteRequest, arrange: Arrange | None = None) -> Route:
    """`RoutingTable.of(snapshot).resolve(request, arrange)`; on hot paths keep the table per snapshot."""
    return RoutingTable.of(snapshot).resolve(request, arrange)


def list_models(snapshot: RegistrySnapshot, tenant: str) -> tuple[ListedModel, ...]:
    """`RoutingTable.of(snapshot).list_models(tenant)`."""
    return RoutingTable.of(snapshot).list_models(tenant)


def _zones(snapshot: RegistrySnapshot) -> dict[str, tuple[str, ...]]:
    zones: dict[str, set[str]] = {}
    for (service, _), endpoint in snapshot.endpoints.items():
        if service in (WORKER_SERVICE, PREDICTOR_SERVICE):
            for version in endpoint.model_versions:
                if service == _runner_of(snapshot, version):
                    zones.setdefault(version, set()).add(endpoint.zone)
    return {version: tuple(sorted(found)) for version, found in zones.items()}


def _runner_of(snapshot: RegistrySnapshot, version: str) -> str:
    """Which service runs it."""
    known = snapshot.model_versions.get(version)
    return PREDICTOR_SERVICE if known is not None and known.HasField("prediction") else WORKER_SERVICE


def _layouts(snapshot: RegistrySnapshot, before: RoutingTable) -> dict[str, Layout | None]:
    known = before.snapshot.aliases
    return {
        name: before.layouts[name]
        if known.get(name) is alias
        else lay_out([Target(target.model_version, target.weight, target.arm) for target in alias.targets])
        for name, alias in snapshot.aliases.items()
    }


def _splits(snapshot: RegistrySnapshot, tenants: frozenset[str], before: RoutingTable) -> Mapping[str, Split]:
    """Those of rollouts whose alias, switch and tenants are as they were stay the same."""
    old = before.snapshot
    same_switch, same_tenants = snapshot.switches is old.switches, tenants is before.tenants
    if same_switch and same_tenants and snapshot.aliases is old.aliases and snapshot.rollouts is old.rollouts:
        return before.splits
    splits: dict[str, Split] = {}
    for alias, rollout in snapshot.rollouts.items():
        if "@" in alias:
            continue  # Such a name asks for a pinned version.
        split = before.splits.get(alias)
        same = old.rollouts.get(alias) is rollout and old.aliases.get(alias) is snapshot.aliases.get(alias)
        chosen = split is not None and split.chosen_from is not None
        if not (same and same_switch and (same_tenants or not chosen)):
            split = split_of(snapshot, alias, tenants, split)
        if split is not None:
            splits[alias] = split
    return splits


def _plain_key(request: RouteRequest) -> str:
    return request.sticky_key or request.session or request.user or request.tenant


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
