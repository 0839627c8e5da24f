"""What a tenant is given and a request is held to, looked up in a snapshot: plan, weight, objectives, limits, prices.

Each is a few dictionary reads, for hot paths, but `limit_specs`, `budget_specs`, `price_book` and `cost_book`, which
are made once per change. Messages are the snapshot's own and must not be changed.
"""

from __future__ import annotations

from weir.registry.v1 import registry_pb2 as pb

from libs.deadlines import to_seconds
from libs.quota import ALERT_PERCENT, DAY_NS, ROWS, BudgetSpec, LimitSpec, Price, PriceBook
from libs.resources.snapshot import RegistrySnapshot

_SECOND = 1_000_000_000
ANY = "*"
"""Model or tier of an entry for all that have none of their own."""


def plan_name(tenant: pb.Tenant | None) -> str:
    """The id of the plan that holds for a tenant; for one that is not registered, "free"."""
    if tenant is None:
        return "free"
    return tenant.plan_policy or ("paid" if tenant.plan == pb.PLAN_PAID else "free")


def plan_of(snapshot: RegistrySnapshot, tenant: str) -> pb.PlanPolicy:
    """What a tenant's plan gives; a plan without a policy gives an empty one: weight 1, no degradation, all of the KV.

    In the policy a `weight` of 0 means 1, and a `kv_share` of 0 means 1: see `weight_of` and `kv_share_of`.
    """
    name = plan_name(snapshot.tenants.get(tenant))
    return snapshot.plans.get(name) or pb.PlanPolicy(id=name)


def weight_of(snapshot: RegistrySnapshot, tenant: str) -> float:
    """A tenant's weight in fair queuing: its own times its plan's, above 0."""
    known = snapshot.tenants.get(tenant)
    plan = snapshot.plans.get(plan_name(known))
    return ((known.weight if known else 0.0) or 1.0) * ((plan.weight if plan else 0.0) or 1.0)


def kv_share_of(plan: pb.PlanPolicy) -> float:
    """Most of a pool's KV blocks that one tenant of the plan may hold, above 0, at most 1."""
    return plan.kv_share or 1.0


def tier_of(version: pb.ModelVersion) -> str:
    """By what a version is held to objectives: its tier; of one that predicts, its profile."""
    return version.prediction.profile if version.HasField("prediction") else version.tier


def runners_of(snapshot: RegistrySnapshot) -> list[pb.Endpoint]:
    """Live processes that load versions and run them: workers and predictors."""
    return [*snapshot.endpoints_of("worker"), *snapshot.endpoints_of("predictor")]


def slo_of(snapshot: RegistrySnapshot, route: str, tier: str) -> pb.Slo | None:
    """The objectives of a route ("generate", "embed", "predict", "batch") and tier: its own, else those of "*"."""
    return snapshot.slos.get((route, tier)) or snapshot.slos.get((route, ANY))


def limit_specs(snapshot: RegistrySnapshot) -> dict[tuple[str, str], LimitSpec]:
    """The declared limits, by tenant and model; those of rows by its name behind `ROWS`."""
    specs = {
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
    of_rows = (
        ((tenant, ROWS + model), LimitSpec(tokens_per_minute=limits.rows_per_minute))
        for (tenant, model), limits in snapshot.limits.items()
        if limits.rows_per_minute
    )
    return {**specs, **dict(of_rows)}


def budget_specs(snapshot: RegistrySnapshot) -> dict[str, BudgetSpec]:
    """The declared budgets, by tenant."""
    zones = {tenant: snapshot.tenants[tenant].time_zone for tenant in snapshot.budgets if tenant in snapshot.tenants}
    return {
        tenant: BudgetSpec(
            monthly_microusd=budget.monthly_microusd,
            daily_microusd=budget.daily_microusd,
            hard=budget.enforcement != pb.BUDGET_ENFORCEMENT_SOFT,
            alert_percent=tuple(budget.alert_percent) or ALERT_PERCENT,
            time_zone=zones.get(tenant, ""),
        )
        for tenant, budget in snapshot.budgets.items()
    }


def price_book(snapshot: RegistrySnapshot) -> PriceBook:
    """What tokens and rows cost, by the declared prices."""
    return PriceBook({name: _price(price) for name, price in snapshot.prices.items()})


def cost_book(snapshot: RegistrySnapshot) -> PriceBook:
    """What tokens cost us, by the declared costs; where a price declares no cost of its own, cost equals price."""
    return PriceBook({name: _cost(price, _price(price)) for name, price in snapshot.prices.items()})


def _cost(declared: pb.Price, price: Price) -> Price:
    """Of tokens and of rows, each where it is declared."""
    if declared.input_cost_microusd_per_million or declared.output_cost_microusd_per_million:
        tokens = declared.input_cost_microusd_per_million, declared.output_cost_microusd_per_million
        price = Price(*tokens, row=price.row)
    return price._replace(row=declared.row_cost_microusd_per_million or price.row)


def _price(price: pb.Price) -> Price:
    cached = price.cached_input_microusd_per_million if price.HasField("cached_input_microusd_per_million") else None
    row = price.row_microusd_per_million
    return Price(price.input_microusd_per_million, price.output_microusd_per_million, cached, row)
