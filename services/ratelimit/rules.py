"""What the registry says that decisions need: limits, prices, levels, and how many gateways there are."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2

from libs.deadlines import to_seconds
from libs.quota import ALL_MODELS, HOLDERS, ROWS, LimitSpec, PriceBook
from libs.registry import RegistrySnapshot, limit_specs
from libs.registry.terms import plan_of, price_book
from libs.rollouts import SHADOW_TENANT
from services.ratelimit.policy.shedding import NOTHING, Levels, Shed

_SECOND = 1_000_000_000


class Rules:
    """The present rules, replaced with each snapshot that changes them.

    :param level_ns: levels count no longer than this after the registry was last seen.
    """

    def __init__(self, *, level_ns: int) -> None:
        self.prices = PriceBook({})
        self._levels = Levels()
        self._level_ns = level_ns
        self._levels_end = 0
        self.least_spend = 0
        """Micro-dollars that any request costs at least, known without its model."""
        self.gateways = 1
        self._seen = RegistrySnapshot()

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Takes over what has changed."""
        seen, self._seen = self._seen, snapshot
        if snapshot.prices is not seen.prices:
            self.prices = price_book(snapshot)
            self.least_spend = int(self.prices.nothing_is_free)
        if snapshot.endpoints is not seen.endpoints:
            self.gateways = max(1, sum(1 for service, _ in snapshot.endpoints if service in HOLDERS))
        if snapshot.endpoints is not seen.endpoints or snapshot.levels is not seen.levels:
            self._levels = levels_of(snapshot)

    def registry_seen(self, now: int) -> None:
        """What is known of the registry is what stands in it at `now`."""
        self._levels_end = now + self._level_ns

    def shed(self, tenant: str, pool: str, now: int) -> Shed:
        """What of a tenant's requests to refuse; nothing when the registry was not seen for too long, as after a start
        from its cached snapshot.

        A level ends with the lease of who wrote it, and that end cannot be seen then. The level's own age says
        nothing: while an overload lasts and its shares stay the same, it is not written again.
        """
        return self._levels.of(tenant, pool) if now < self._levels_end else NOTHING

    def serves_over_quota(self, tenant: str) -> bool:
        """Whether the tenant's plan has its requests served beyond its limits per minute, when nothing else waits."""
        return plan_of(self._seen, tenant).over_quota == registry_pb2.OVER_QUOTA_SERVE_IDLE


def limits_of(snapshot: RegistrySnapshot) -> dict[tuple[str, str], LimitSpec]:
    """The declared limits. Mirrored requests, which run in the name of a tenant of their own, have limits per alias by
    the plans of their rollouts; together they have the sum of those, and not what a tenant has that nobody limited."""
    specs = limit_specs(snapshot)
    for unit in ("", ROWS):
        every = SHADOW_TENANT, unit + ALL_MODELS
        planned = [
            spec
            for (tenant, model), spec in specs.items()
            if tenant == SHADOW_TENANT and model.startswith(ROWS) is bool(unit)
        ]
        if planned and every not in specs:
            requests, tokens = (
                [each.requests_per_minute for each in planned],
                [each.tokens_per_minute for each in planned],
            )
            # Of one that is not limited (0) there is no sum.
            specs[every] = LimitSpec(all(requests) and sum(requests), all(tokens) and sum(tokens))
    return specs


def levels_of(snapshot: RegistrySnapshot) -> Levels:
    """What the pools' owners say of whom to shed, over the pools that have workers."""
    by_pool = {
        pool: {
            told.tenant: Shed(min(1.0, told.shed), int(to_seconds(told.retry_after) * _SECOND))
            for told in level.tenants
            if told.shed > 0
        }
        for pool, level in snapshot.levels.items()
    }
    serving = {endpoint.pool for (service, _), endpoint in snapshot.endpoints.items() if service == "worker"}
    return Levels(by_pool, serving)
