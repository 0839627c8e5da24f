"""The quota of mirrored requests: what their rollouts plan, and nothing that unlimited tenants get."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.quota import Admitted, Ask, Denied, Ledger, LimitSpec
from libs.registry import RegistrySnapshot
from libs.rollouts import SHADOW_TENANT
from services.ratelimit.rules import limits_of

DEFAULT = LimitSpec(requests_per_minute=60, tokens_per_minute=20_000, concurrency=4)
ALL = (SHADOW_TENANT, "*")


def declared(*limits: tuple[str, str, int, int]) -> RegistrySnapshot:
    made = [pb.Limits(tenant=t, model=m, requests_per_minute=r, tokens_per_minute=k) for t, m, r, k in limits]
    return RegistrySnapshot(limits={(each.tenant, each.model): each for each in made})


def test_together_aliases_have_the_sum_of_their_plans() -> None:
    specs = limits_of(declared((SHADOW_TENANT, "a", 600, 1000), (SHADOW_TENANT, "b", 60, 500), ("acme", "a", 5, 5)))
    assert specs[ALL] == LimitSpec(660, 1500)
    assert ("acme", "*") not in specs


@pytest.mark.parametrize(
    ("declares", "expected"),
    [
        ([], None),
        ([("acme", "*", 5, 5)], None),
        ([(SHADOW_TENANT, "a", 600, 1000), (SHADOW_TENANT, "*", 7, 9)], LimitSpec(7, 9)),
        ([(SHADOW_TENANT, "a", 600, 1000), (SHADOW_TENANT, "b", 0, 500)], LimitSpec(0, 1500)),
    ],
)
def test_what_operators_declare_goes_before(
    declares: list[tuple[str, str, int, int]], expected: LimitSpec | None
) -> None:
    assert limits_of(declared(*declares)).get(ALL) == expected


def test_a_plan_beyond_the_defaults_can_be_used_up_and_no_more() -> None:
    ledger = Ledger(default=DEFAULT)
    ledger.apply_limits(limits_of(declared((SHADOW_TENANT, "fast", 100, 1_000_000))), 0)
    outcomes = [ledger.reserve(Ask(SHADOW_TENANT, "fast", f"copy-{n}", 500), lease_ns=10**9, now=n) for n in range(101)]
    assert [type(each) for each in outcomes] == [Admitted] * 100 + [Denied]
