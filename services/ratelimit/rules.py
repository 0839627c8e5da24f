"""What the registry says that decisions need: limits, prices, levels, and how many gateways there are."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2

from libs.deadlines import to_seconds
from libs.gcra import DAY_NS, LimitSpec, PriceBook
from libs.registry import RegistrySnapshot
from libs.registry.terms import plan_of, price_book
from services.ratelimit.policy.shedding import Levels, Shed

_SECOND = 1_000_000_000


class Rules:
    """The present rules, replaced with each snapshot that changes them."""

    def __init__(self) -> None:
        self.prices = PriceBook({})
        self.levels = Levels()
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
            self.gateways = max(1, sum(1 for service, _ in snapshot.endpoints if service == "gateway"))
        if snapshot.endpoints is not seen.endpoints or snapshot.levels is not seen.levels:
            self.levels = levels_of(snapshot)

    def serves_over_quota(self, tenant: str) -> bool:
        """Whether the tenant's plan has its requests served beyond its limits per minute, when nothing else waits."""
        return plan_of(self._seen, tenant).over_quota == registry_pb2.OVER_QUOTA_SERVE_IDLE


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


def specs_of(snapshot: RegistrySnapshot) -> dict[tuple[str, str], LimitSpec]:
    """The registry's limits, by tenant and model."""
    return {
        key: LimitSpec(
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            concurrency=limits.concurrency,
            spend_microusd=limits.spend_microusd,
            spend_window_ns=int(to_seconds(limits.spend_window) * _SECOND) or DAY_NS,
            max_context=limits.max_context,
            max_output=limits.max_output,
        )
        for key, limits in snapshot.limits.items()
    }
