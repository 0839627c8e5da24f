"""Rows of predictions beside tokens: limits of their own, the same money, the same requests, no slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.audit.v1 import audit_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import ManualClock
from libs.errors import Reason
from libs.quota import (
    MINUTE_NS,
    ROWS,
    Admitted,
    Ask,
    Bridge,
    BudgetSpec,
    Denied,
    Ledger,
    LimitKind,
    LimitSpec,
    Price,
    PriceBook,
    Replica,
    Share,
    ask_of,
    error_of,
    used_of,
)
from libs.quota.amount import NO_LIMIT, Amount
from libs.registry import RegistrySnapshot, cost_book, limit_specs, price_book
from libs.rollouts import SHADOW_TENANT
from services.ratelimit.lapsed import Lapsed
from services.ratelimit.rules import limits_of
from tests.support.quota import take_over

SECOND = 1_000_000_000
LEASE = 30 * SECOND


def ledger(**more: object) -> Ledger:
    limits = pb.Limits(
        tenant="acme", model="*", tokens_per_minute=100, rows_per_minute=1000, requests_per_minute=50, concurrency=1
    )
    of_model = pb.Limits(tenant="acme", model="fraud", rows_per_minute=400, requests_per_minute=20)
    made = Ledger(**more)  # type: ignore[arg-type]
    made.apply_limits(limit_specs(snapshot_of(limits, of_model)), 0)
    return made


def snapshot_of(*limits: pb.Limits) -> RegistrySnapshot:
    return RegistrySnapshot(limits={(each.tenant, each.model): each for each in limits})


def rows(name: str, count: int, *, model: str = "fraud", requests: int = 1, **more: object) -> Ask:
    return Ask("acme", ROWS + model, name, count, f"{model}@1", requests=requests, **more)  # type: ignore[arg-type]


def taken(one: Ledger, ask: Ask, now: int = 0) -> bool:
    return isinstance(one.reserve(ask, lease_ns=LEASE, now=now), Admitted)


def refused(one: Ledger, ask: Ask, now: int = 0) -> Denied:
    outcome = one.reserve(ask, lease_ns=LEASE, now=now)
    assert isinstance(outcome, Denied)
    return outcome


def test_rows_are_held_to_the_limits_of_rows_of_the_tenant_and_of_the_model() -> None:
    one = ledger()
    assert taken(one, rows("a", 400))
    denied = refused(one, rows("b", 1))
    assert (denied.kind, denied.model, denied.report.limit) == (LimitKind.ROWS, "fraud", 400)
    assert taken(one, rows("c", 600, model="churn"))
    assert refused(one, rows("d", 1, model="churn")).model == "*"
    error = error_of(denied, SECOND)
    assert (error.reason, error.limit) == (Reason.QUOTA_ROWS, "rows_per_minute")
    assert "400 rows per minute for model fraud" in error.message


def test_a_pinned_version_is_no_way_around_the_limit_of_its_model() -> None:
    one = ledger()
    assert taken(one, Ask("acme", ROWS + "fraud@1", "a", 400, "fraud@1"))
    assert refused(one, Ask("acme", ROWS + "alias", "b", 1, "fraud@1")).model == "fraud"


def test_rows_are_no_tokens_and_take_no_slot() -> None:
    one = ledger()
    assert taken(one, rows("a", 400))
    assert taken(one, rows("b", 400, model="churn"))
    assert taken(one, Ask("acme", "fast", "stream", 100))
    assert refused(one, Ask("acme", "fast", "other", 0)).kind is LimitKind.CONCURRENCY
    assert taken(one, rows("c", 100, model="churn"))
    assert one.report("acme", "fast", 0).tokens.remaining == 0
    assert one.report("acme", ROWS + "churn", 0).tokens == (1000, 100, MINUTE_NS, MINUTE_NS)


def test_a_lease_stands_for_as_many_requests_as_it_says() -> None:
    one = ledger()
    assert taken(one, rows("a", 10, requests=20))
    assert refused(one, rows("b", 1)).kind is LimitKind.REQUESTS
    assert taken(one, rows("c", 1, model="churn", requests=30))
    denied = refused(one, rows("d", 1, model="churn"))
    assert (denied.kind, denied.model) == (LimitKind.REQUESTS, "*")


def test_what_the_edge_counted_counts_for_the_model_alone() -> None:
    one = ledger()
    assert taken(one, rows("a", 1, requests=20, count_request=False))
    assert one.report("acme", ROWS + "churn", 0).requests.remaining == 50
    assert refused(one, rows("b", 1, count_request=False)).model == "fraud"


def test_money_is_the_same_for_rows_and_for_tokens() -> None:
    one = Ledger()
    one.apply_limits({("acme", "*"): LimitSpec(spend_microusd=100)}, 0)
    one.apply_budgets({"acme": BudgetSpec(monthly_microusd=80)})
    assert taken(one, Ask("acme", "fast", "a", 5, spend=50))
    assert taken(one, rows("b", 7, spend=30))
    assert refused(one, rows("c", 1, spend=1)).kind is LimitKind.BUDGET_MONTH
    one.settle("acme", ROWS + "fraud", "b", 5, 0, spend=20, version="fraud@1")
    assert taken(one, Ask("acme", "fast", "d", 5, spend=10))


@given(reserved=st.integers(0, 400), used=st.integers(0, 400))
def test_what_was_not_used_comes_back(reserved: int, used: int) -> None:
    one = ledger()
    assert taken(one, rows("a", reserved))
    one.settle("acme", ROWS + "fraud", "a", used, 0, version="fraud@1")
    assert one.report("acme", ROWS + "fraud@1", 0).tokens.remaining == 400 - used
    assert one.report("acme", "fast", 0).tokens.remaining == 100


def test_replicas_count_rows_and_requests_alike() -> None:
    one, other = (Replica(ledger(part=(name, "1"), track_changes=True)) for name in "ab")
    assert taken(one.ledger, rows("open", 30, requests=3))
    assert taken(one.ledger, rows("over", 50, requests=4))
    one.ledger.settle("acme", ROWS + "fraud", "over", 20, 0, version="fraud@1")
    logged = one.flush(0)
    assert logged is not None
    assert other.follow(logged, 0)
    late = Replica(ledger(part=("c", "1"), track_changes=True))
    take_over(late, one, 0)
    for each in (one, other, late):
        report = each.ledger.report("acme", ROWS + "fraud@1", 0)
        assert (report.tokens.remaining, report.requests.remaining) == (400 - 30 - 20, 20 - 7)
        assert each.ledger.report("acme", "fast", 0).requests.remaining == 50 - 7


def test_a_predictor_gives_out_of_its_shares_of_rows_and_holds_no_tokens() -> None:
    owner, bridge = ledger(), Bridge[str]()
    bridge.apply(limit_specs(snapshot_of(pb.Limits(tenant="acme", model="*", rows_per_minute=1000))), {}, 1, 0)
    ask = rows("a", 10, holder="predictor-0")
    assert taken(owner, ask)
    number, shares = owner.tell(ask, 0, 0, allowance=True)
    told = {share.model: share for share in shares}
    assert told["rows/*"].amount.tokens == 1000 // 8
    assert told["*"] == Share("*", Amount(NO_LIMIT, 50 // 8, NO_LIMIT, NO_LIMIT))
    assert owner.reserve(Ask("acme", "fast", "stream", 100), lease_ns=LEASE, now=0) == owner.report("acme", "fast", 0)
    kept = (each for each in shares if "fraud" not in each.model)
    bridge.told("acme", number, kept, LEASE, 0, allowance=True, uncounted=True)
    allowed = rows("b", 100, requests=5)
    assert bridge.allow(allowed, "b", lease_ns=LEASE, until=LEASE, now=0) is not None
    assert bridge.allow(rows("c", 26), "c", lease_ns=LEASE, until=LEASE, now=0) is None
    assert bridge.allow(rows("d", 1, requests=2), "d", lease_ns=LEASE, until=LEASE, now=0) is None
    bridge.settle("acme", ROWS + "fraud", "b", 40, 0, spend=0)
    assert bridge.allow(rows("e", 85), "e", lease_ns=LEASE, until=LEASE, now=0) is not None


def test_rows_are_priced_as_declared_and_rounded_up_once() -> None:
    declared = pb.Price(model="fraud", row_microusd_per_million=150_000, row_cost_microusd_per_million=50_000)
    snapshot = RegistrySnapshot(prices={"fraud": declared})
    book = price_book(snapshot)
    assert [book.of("fraud@1", "").of_rows(count) for count in (0, 1, 7, 100)] == [0, 1, 2, 15]
    assert cost_book(snapshot).of("fraud@1", "").exact_rows(10) == 0.5
    tokens = RegistrySnapshot(prices={"*": pb.Price(input_cost_microusd_per_million=7, row_microusd_per_million=3)})
    assert cost_book(tokens).of("x", "") == Price(7, 0, row=3)
    reserve = quota_pb2.Reserve(tenant="acme", model="fraud", model_version="fraud@1", tokens=7, rows=True, requests=4)
    ask = ask_of(reserve, book)
    assert (ask.model, ask.tokens, ask.spend, ask.requests, ask.context) == ("rows/fraud", 7, 2, 4, 0)
    settle = quota_pb2.Settle(model="fraud", model_version="fraud@1", tokens=100, rows=True)
    assert used_of(settle, book) == ("rows/fraud", 100, 15)
    assert used_of(quota_pb2.Settle(model="fraud", tokens=100), PriceBook({"*": Price(10**6, 10**6, row=9)}))[2] == 100


def test_together_mirrored_rows_have_the_sum_of_their_plans() -> None:
    shadows = [pb.Limits(tenant=SHADOW_TENANT, model=name, rows_per_minute=100) for name in "ab"]
    specs = limits_of(snapshot_of(*shadows))
    assert specs[SHADOW_TENANT, "rows/*"].tokens_per_minute == 200
    assert specs[SHADOW_TENANT, "*"] == LimitSpec()


def test_a_lease_of_rows_that_nobody_settles_is_told_in_rows() -> None:
    one, put = Ledger(settled_retention_ns=60 * SECOND), list[audit_pb2.Record]()
    assert taken(one, rows("r1", 100, spend=7, holder="predictor-0/a"), SECOND)
    one.end_held_by("predictor-0/a", 2 * SECOND)
    lapse = Lapsed(put.append, owns=lambda _: True, source="ratelimit/r-0", clock=ManualClock())
    assert list(lapse(one.forget(100 * SECOND))) == [("acme", "r1")]
    [record] = put
    event = record.request
    assert (event.at_most_rows, event.at_most_tokens, event.at_most_microusd) == (100, 0, 7)


@pytest.mark.parametrize("count", [2**32 + 1, 2**63])
def test_more_rows_than_any_prediction_has_are_refused_by_name(count: int) -> None:
    with pytest.raises(Exception, match=f"no request has {count} rows"):
        ask_of(quota_pb2.Reserve(tokens=count, rows=True), PriceBook({}))
