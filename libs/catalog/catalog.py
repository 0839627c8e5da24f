"""Tenants, plans and model versions, as one snapshot of the registry says."""

from __future__ import annotations

import contextlib

import msgspec
from weir.registry.v1 import registry_pb2

from libs.artifacts import BLOBS
from libs.catalog.declared import plan_of
from libs.catalog.plans import CpuFallback, Plan
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.outcomes import ArmKey, Objectives, objectives_of
from libs.outcomes.objectives import NOTHING
from libs.quota import PriceBook
from libs.registry import RegistrySnapshot, cost_book, plan_name, price_book
from libs.rollouts import BASELINE, StickyBy, needed_versions, phase_of
from libs.routing import ListedModel, Route, RouteRequest, RoutingTable, bucket_of
from libs.routing.split import sticky_key
from libs.safety_policies import floor_of, pins_of
from libs.texts import TextModel, TextStore

_UNKNOWN = registry_pb2.Tenant(plan=registry_pb2.PLAN_FREE)
_NO_POLICY = Plan()
UNKNOWN_MODEL = "<unknown>"
"""Stands in records for a model's name that the registry does not know."""
_MOST_LIMITS = 10_000
"""Remembered; when there are more, all are worked out anew."""
_NAMING = ("model_versions", "aliases", "rollouts", "pins", "model_grants")
"""Collections that say which versions may be asked for."""
_CANARY = registry_pb2.ROLLOUT_PHASE_CANARY
_EXPOSED = (_CANARY, registry_pb2.ROLLOUT_PHASE_EXPERIMENT)


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What binds a generation: the version's context and defaults, and the tenant's limits (0: unlimited)."""

    context_length: int
    default_max_tokens: int
    default_temperature: float
    default_top_p: float
    default_top_k: int = 0
    default_min_p: float = 0.0
    default_repetition_penalty: float = 0.0
    """0: none."""
    max_context: int = 0
    max_output: int = 0


class Catalog:
    """Follows the registry; look-ups are dictionary reads on an immutable snapshot."""

    def __init__(self, *, zone: str, texts: TextStore, clock: Clock) -> None:
        self.texts = texts
        self._clock = clock
        self._zone = zone
        self.costs = PriceBook({})
        self.prices = PriceBook({})
        """What tokens cost us."""
        self._table = RoutingTable.of(RegistrySnapshot())
        self._fetched = self._table.snapshot
        self._workloads: dict[str, str] = {}
        self._plans: dict[str, Plan] = {}
        self._objectives: dict[tuple[str, str], Objectives] = {}
        self._limits: dict[tuple[str, str, str, str], ModelLimits] = {}  # of this snapshot

    def table(self) -> RoutingTable:
        """Where requests go by the present snapshot."""
        return self._table

    @property
    def snapshot(self) -> RegistrySnapshot:
        """The present snapshot."""
        return self._table.snapshot

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Take a new snapshot (RegistryView.on_change)."""
        before = self.snapshot  # a collection that has not changed is the same object
        if snapshot.prices is not before.prices:
            self.costs, self.prices = cost_book(snapshot), price_book(snapshot)
        self._table = RoutingTable.of(snapshot, self._table)
        self._limits.clear()
        if snapshot.tenants is not before.tenants:
            self._workloads = {spiffe: t.id for t in snapshot.tenants.values() for spiffe in t.workloads}
        if snapshot.plans is not before.plans:
            self._plans = {name: plan_of(message) for name, message in snapshot.plans.items()}
        if snapshot.slos is not before.slos:
            self._objectives = {key: objectives_of(message) for key, message in snapshot.slos.items()}

    def tenant(self, tenant_id: str) -> registry_pb2.Tenant:
        """The tenant; one that the snapshot does not know yet is treated as a free one without privileges."""
        return self.snapshot.tenants.get(tenant_id, _UNKNOWN)

    def fails_closed(self, tenant_id: str) -> bool:
        """The tenant's requests are refused while the safety service is away."""
        return self.tenant(tenant_id).safety_fail_mode != registry_pb2.FAIL_MODE_FLAG

    def plan(self, tenant: registry_pb2.Tenant) -> Plan:
        """What the tenant's plan gives; the plain one where the registry holds no policy of that name."""
        return self._plans.get(plan_name(tenant), _NO_POLICY)

    def objectives(self, route: str, tier: str) -> Objectives:
        """What is declared for a route and tier: their own declaration, or the one for every tier."""
        return self._objectives.get((route, tier)) or self._objectives.get((route, "*"), NOTHING)

    def pools(self) -> set[str]:
        """Every pool that a request may be sent to: those of the versions, and those of plans' fallbacks."""
        found = {version.pool for version in self.snapshot.model_versions.values()}
        for plan in self._plans.values():
            for step in plan.ladder:
                if isinstance(step, CpuFallback):
                    found.update(step.pools.values())
        return found

    def policies(self, tenant: registry_pb2.Tenant, version: registry_pb2.ModelVersion) -> tuple[str, ...]:
        """The safety policies of a tenant's requests to a version: "default@1"."""
        return pins_of(floor_of(self.snapshot), tenant, version)

    def tenant_of_workload(self, spiffe: str) -> str:
        """The tenant that an internal caller acts as; empty when it is not registered."""
        return self._workloads.get(spiffe, "")

    def question(
        self, tenant: str, model: str, *, user: str = "", session: str = "", request_id: str = ""
    ) -> RouteRequest:
        """What the router is asked from this process's zone."""
        return RouteRequest(tenant, model, zone=self._zone, user=user, session=session, request_id=request_id)

    def resolve(self, asked: RouteRequest) -> Route:
        """The route as the router would choose it on this snapshot, without breakers.

        :raises WeirError: MODEL_NOT_FOUND, REGION_NOT_ALLOWED.
        """
        return self._table.resolve(asked)

    def elsewhere(self, tenant: str, pool: str) -> tuple[str, ...]:
        """The zones of another pool in which a tenant's request may go on; empty: all.

        :raises WeirError: REGION_NOT_ALLOWED.
        """
        return self._table.elsewhere(tenant, pool)

    def arm_key(self, alias: str, route: Route) -> ArmKey | None:
        """Where a request counts that got this route under this name; None outside rollouts.

        The router may have seen a newer or an older phase of the rollout than this snapshot: what the route itself
        shows goes before.
        """
        if not route.rollout_id:
            return None
        known = self.snapshot.rollouts.get(alias)
        phase = phase_of(known) if known is not None and known.id == route.rollout_id else _CANARY
        if route.mirror is not None:
            phase = registry_pb2.ROLLOUT_PHASE_SHADOW
        elif route.arm != BASELINE and phase not in _EXPOSED:
            phase = _CANARY
        return ArmKey(alias, route.rollout_id, int(phase), route.step, route.arm)

    def baseline(self, alias: str, route: Route) -> str | None:
        """The version that a request would have got if its rollout were not; None where it got that, outside rollouts
        and where the rollout is not known here."""
        if not route.rollout_id or route.arm == BASELINE:
            return None
        known = self.snapshot.rollouts.get(alias)
        if known is None or known.id != route.rollout_id or known.baseline == route.model_version:
            return None
        return known.baseline

    def key_bucket(self, arm: ArmKey, asked: RouteRequest, buckets: int) -> int:
        """The bucket of a caller's sticky key among those that evidence is counted by: drawn beside the one that
        decides the arm, so that each of these holds keys of every arm."""
        split = self._table.splits.get(arm.alias)
        sticky = split.sticky if split is not None else StickyBy.TENANT
        key = sticky_key(sticky, asked.tenant, asked.user, asked.sticky_key or asked.session)
        return bucket_of(f"{arm.rollout_id}\0evidence", key, buckets)

    def version(self, model_version: str) -> registry_pb2.ModelVersion:
        """A registered version.

        :raises WeirError: MODEL_NOT_FOUND.
        """
        version = self.snapshot.model_versions.get(model_version)
        if version is None:
            raise WeirError(Reason.MODEL_NOT_FOUND, f"there is no version {model_version[:100]!r}", limit="model")
        return version

    def told(self, model: str) -> str:
        """A model's name for records, traces and logs: as the caller wrote it only if the registry knows it, for it may
        be anything that a user wrote."""
        snapshot = self.snapshot
        known = model in snapshot.aliases or model in snapshot.model_versions or model in snapshot.rollouts
        return model if known else UNKNOWN_MODEL

    def has_workers(self, model_version: str) -> bool:
        """Live workers have the version ready."""
        return bool(self._table.zones.get(model_version))

    def models(self, tenant: str) -> tuple[ListedModel, ...]:
        """What this tenant may ask for."""
        return self._table.list_models(tenant)

    def model(self, tenant: str, name: str) -> ListedModel | None:
        """One of these; None where the tenant may not ask for it."""
        return self._table.find_model(tenant, name)

    def limits(self, tenant: str, model: str, version: registry_pb2.ModelVersion) -> ModelLimits:
        """What binds a request of this tenant: the strictest of its limits for the model's name and for all."""
        key = (tenant, model, version.name, version.version)
        known = self._limits.get(key)
        if known is None:
            if len(self._limits) >= _MOST_LIMITS:
                self._limits.clear()
            known = self._limits[key] = self._limits_of(tenant, model, version)
        return known

    def _limits_of(self, tenant: str, model: str, version: registry_pb2.ModelVersion) -> ModelLimits:
        found = [self.snapshot.limits.get((tenant, name)) for name in (model, "*")]
        return ModelLimits(
            context_length=version.context_length,
            default_max_tokens=version.sampling_defaults.max_tokens,
            default_temperature=version.sampling_defaults.temperature,
            default_top_p=version.sampling_defaults.top_p,
            default_top_k=version.sampling_defaults.top_k,
            default_min_p=version.sampling_defaults.min_p,
            default_repetition_penalty=version.sampling_defaults.repetition_penalty,
            max_context=min((limit.max_context for limit in found if limit and limit.max_context), default=0),
            max_output=min((limit.max_output for limit in found if limit and limit.max_output), default=0),
        )

    def per_minute(self, tenant: str, model: str) -> tuple[int, int]:
        """The tenant's strictest limits of requests and of tokens per minute for this model's name; 0: unlimited."""
        found = [limit for name in (model, "*") if (limit := self.snapshot.limits.get((tenant, name)))]
        requests = min((limit.requests_per_minute for limit in found if limit.requests_per_minute), default=0)
        return requests, min((limit.tokens_per_minute for limit in found if limit.tokens_per_minute), default=0)

    async def text(
        self,
        version: registry_pb2.ModelVersion,
        timeout: float | None = None,  # noqa: ASYNC109 - passed on
    ) -> TextModel:
        """The version's tokenizer and template; see `TextStore.load`.

        :raises WeirError: INVALID_REQUEST, it has none because it predicts.
        """
        if version.HasField("prediction"):
            raise WeirError(Reason.INVALID_REQUEST, f"{version.name} answers predictions, no text", limit="model")
        return await self.texts.load(version, timeout)

    def fetch_texts(self) -> None:
        """Have the tokenizers of all versions that may be asked for loaded in the background, if that changed."""
        before, self._fetched = self._fetched, self.snapshot
        if any(getattr(self.snapshot, name) is not getattr(before, name) for name in _NAMING):
            self.texts.want(self._needed(), {version.digest for version in self.snapshot.model_versions.values()})

    async def preload(self) -> None:
        """Load the tokenizers of every version that may be asked for by name or alias, so that no first request waits;
        faults are logged."""
        for version in self._needed():
            with contextlib.suppress(WeirError):  # logged; the version's own requests will say so too
                await self.text(version)

    def _needed(self) -> list[registry_pb2.ModelVersion]:
        """Versions that write, that somebody may ask for without naming them in full or that lie in a folder."""
        snapshot = self.snapshot
        needed = needed_versions(snapshot, self._clock.time())
        return [
            version
            for name, version in snapshot.model_versions.items()
            if (name in needed or version.source != BLOBS) and not version.HasField("prediction")
        ]
