"""Look-ups of plans, weights, objectives and prices."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.quota import DAY_NS, LimitSpec, Price
from libs.registry import RegistrySnapshot
from libs.registry.terms import cost_book, kv_share_of, limit_specs, plan_of, price_book, slo_of, weight_of

FAST = pb.Price(model="weir-fast", input_microusd_per_million=100, output_microusd_per_million=300)


def snapshot(**collections: object) -> RegistrySnapshot:
    return RegistrySnapshot(revision=1, **collections)  # type: ignore[arg-type]


def test_a_tenants_plan_is_the_one_it_names_or_the_one_of_its_kind() -> None:
    tenants = {
        "acme": pb.Tenant(id="acme", plan=pb.PLAN_PAID),
        "tiny": pb.Tenant(id="tiny", plan=pb.PLAN_FREE),
        "gold": pb.Tenant(id="gold", plan=pb.PLAN_PAID, plan_policy="gold"),
        "odd": pb.Tenant(id="odd", plan=pb.PLAN_PAID, plan_policy="unread"),
    }
    plans = {name: pb.PlanPolicy(id=name, kv_share=0.5) for name in ("paid", "free", "gold")}
    known = snapshot(tenants=tenants, plans=plans)
    assert [plan_of(known, name).id for name in ("acme", "tiny", "gold", "nobody")] == ["paid", "free", "gold", "free"]
    missing = plan_of(known, "odd")
    assert (missing.id, len(missing.ladder), kv_share_of(missing)) == ("unread", 0, 1.0)
    assert kv_share_of(plan_of(known, "acme")) == 0.5
    assert plan_of(snapshot(tenants=tenants), "acme") == pb.PlanPolicy(id="paid")


@pytest.mark.parametrize(
    ("own", "plans", "weight"), [(0, 0, 1), (0, 3, 3), (2, 0, 2), (2, 3, 6), (0.5, 4, 2), (2, None, 2)]
)
def test_weights_multiply_and_zero_means_one(own: float, plans: float | None, weight: float) -> None:
    policies = {} if plans is None else {"paid": pb.PlanPolicy(id="paid", weight=plans)}
    known = snapshot(tenants={"acme": pb.Tenant(id="acme", plan=pb.PLAN_PAID, weight=own)}, plans=policies)
    assert weight_of(known, "acme") == weight
    assert weight_of(known, "nobody") == 1.0


def test_objectives_are_those_of_the_tier_or_of_all_tiers() -> None:
    slos = {("generate", "fast"): pb.Slo(route="generate", tier="fast"), ("generate", "*"): pb.Slo(route="generate")}
    known = snapshot(slos=slos)
    assert slo_of(known, "generate", "fast") is slos["generate", "fast"]
    assert slo_of(known, "generate", "quality") is slos["generate", "*"]
    assert slo_of(known, "embed", "fast") is None


@pytest.mark.parametrize("cached", [None, 0, 25])
def test_c7_a_price_of_cached_tokens_is_told_from_none(cached: int | None) -> None:
    price = pb.Price(model="weir-fast", input_microusd_per_million=100, cached_input_microusd_per_million=cached)
    assert price_book(snapshot(prices={"weir-fast": price})).of("weir-fast@1", "") == Price(100, 0, cached)
    assert cost_book(snapshot(prices={"weir-fast": price})).of("weir-fast@1", "") == Price(100, 0, cached)


def test_the_price_book_is_of_the_declared_prices() -> None:
    book = price_book(snapshot(prices={"weir-fast": FAST}))
    assert book.of("weir-fast@1", "cheap") == Price(100, 300)
    assert book.find("other@1", "other") is None


def test_limits_are_per_tenant_and_model_and_spend_is_per_day_unless_said() -> None:
    wide = pb.Limits(tenant="acme", model="*", requests_per_minute=1, tokens_per_minute=2, concurrency=3)
    fast = pb.Limits(tenant="acme", model="fast", spend_microusd=4, max_context=5, max_output=6)
    hourly = pb.Limits(tenant="hour", model="*", spend_microusd=7)
    hourly.spend_window.FromSeconds(3600)
    messages = {(each.tenant, each.model): each for each in (wide, fast, hourly)}
    assert limit_specs(snapshot(limits=messages)) == {
        ("acme", "*"): LimitSpec(1, 2, 3),
        ("acme", "fast"): LimitSpec(spend_microusd=4, spend_window_ns=DAY_NS, max_context=5, max_output=6),
        ("hour", "*"): LimitSpec(spend_microusd=7, spend_window_ns=3600 * 10**9),
    }
