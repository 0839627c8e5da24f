"""Look-ups of plans, weights, objectives and prices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.gcra import Price, PriceBook
from libs.registry import RegistrySnapshot
from libs.registry.terms import cost_microusd, kv_share_of, plan_of, price_of, slo_of, weight_of

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


def test_the_nearest_price_counts_and_pinning_is_no_way_around_it() -> None:
    prices = {"weir-fast": FAST, "weir-fast@2": pb.Price(model="weir-fast@2"), "cheap": pb.Price(model="cheap")}
    known = snapshot(prices=prices)
    everyone = snapshot(prices={**prices, "*": pb.Price(model="*")})
    for version, model, expected in (
        ("weir-fast@1", "weir-fast", "weir-fast"),
        ("weir-fast@1", "weir-fast@1", "weir-fast"),
        ("weir-fast@2", "weir-fast", "weir-fast@2"),
        ("weir-fast@1", "cheap", "cheap"),
        ("", "weir-fast@1", "weir-fast"),
        ("", "weir-fast@2", "weir-fast@2"),
    ):
        found = price_of(known, version, model)
        assert found is not None
        assert found.model == expected
    assert price_of(known, "other@1", "other") is None
    assert (price_of(everyone, "other@1", "other") or FAST).model == "*"


NAMES = st.sampled_from(["a", "a@1", "a@2", "b", "b@1"])


@given(st.dictionaries(st.one_of(NAMES, st.just("*")), st.integers(1, 9)), st.one_of(NAMES, st.just("")), NAMES)
def test_what_is_shown_is_what_the_limiter_charges(prices: dict[str, int], version: str, model: str) -> None:
    known = snapshot(prices={name: pb.Price(model=name, input_microusd_per_million=p) for name, p in prices.items()})
    shown = price_of(known, version, model)
    charged = PriceBook({name: Price(price, 0) for name, price in prices.items()}).of(version, model)
    assert (shown.input_microusd_per_million if shown else 0) == charged.input
    for tokens in (0, 1, 999_999, 10**6 + 1):
        assert cost_microusd(shown, prompt_tokens=tokens, output_tokens=3) == charged.cost(tokens + 3, tokens)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**9), st.integers(0, 10**9))
def test_cost_is_rounded_up_by_less_than_one_micro_dollar(prompt: int, output: int, into: int, out: int) -> None:
    price = pb.Price(input_microusd_per_million=into, output_microusd_per_million=out)
    exact = prompt * into + output * out
    cost = cost_microusd(price, prompt_tokens=prompt, output_tokens=output)
    assert exact <= cost * 1_000_000 < exact + 1_000_000
    assert cost_microusd(None, prompt_tokens=prompt, output_tokens=output) == 0
