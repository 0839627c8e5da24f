"""Reserve and settle over tenant-wide and per-model limits."""

from __future__ import annotations

from typing import Any

import pytest

from libs.quota import (
    ALL_MODELS,
    DAY_NS,
    MINUTE_NS,
    SLOTS,
    Admitted,
    Ask,
    Denied,
    Ledger,
    LimitKind,
    LimitReport,
    LimitSpec,
    SettledAlready,
)

SECOND = 1_000_000_000
LEASE = 30 * SECOND
SLOT = MINUTE_NS // SLOTS


def ledger(**specs: LimitSpec) -> Ledger:
    """Keyword `wide` is the tenant-wide limit of "acme", any other the limit of that model."""
    built = Ledger(track_changes=True)
    built.apply_limits({("acme", ALL_MODELS if name == "wide" else name): spec for name, spec in specs.items()}, 0)
    return built


def reserve(
    book: Ledger,
    request_id: str,
    tokens: int = 10,
    *,
    tenant: str = "acme",
    model: str = "fast",
    now: int = 0,
    **ask: Any,
) -> Admitted | Denied | SettledAlready:
    asked = {"count_request": False} | ask
    return book.reserve(Ask(tenant, model, request_id, tokens, **asked), lease_ns=LEASE, now=now)


def denied_of(outcome: Admitted | Denied | SettledAlready) -> Denied:
    assert isinstance(outcome, Denied)
    return outcome


def tokens_left(book: Ledger, model: str = "fast", now: int = 0) -> int:
    return book.report("acme", model, now).tokens.remaining


def test_reserve_takes_and_settle_replaces_by_actual() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 4))
    assert reserve(book, "r1", 400, count_request=True) == Admitted(
        LimitReport(10, 9, MINUTE_NS + SLOT, MINUTE_NS),
        LimitReport(1000, 600, MINUTE_NS, MINUTE_NS),
        LimitReport(4, 3, 0),
    )
    assert book.settle("acme", "fast", "r1", 150, 0)
    after = book.report("acme", "fast", 0)
    assert after.tokens == LimitReport(1000, 850, MINUTE_NS + SLOT, MINUTE_NS)
    assert after.concurrency.remaining == 4
    assert book.report("acme", "fast", MINUTE_NS + SLOT).tokens == LimitReport(1000, 1000, 0, MINUTE_NS)


def test_a_repeat_takes_nothing_again() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 1))
    first = reserve(book, "r1", 400, count_request=True)
    assert reserve(book, "r1", 400, count_request=True) == first
    assert book.settle("acme", "fast", "r1", 100, 0)
    assert not book.settle("acme", "fast", "r1", 900, 0)
    assert tokens_left(book) == 900
    assert isinstance(reserve(book, "r1"), SettledAlready)


def test_another_tenant_may_use_the_same_request_id() -> None:
    book = ledger(wide=LimitSpec(0, 100, 0))
    reserve(book, "r1", 60)
    assert isinstance(reserve(book, "r1", 5, tenant="globex"), Admitted)
    assert book.live_leases == 2


def test_all_scopes_or_nothing() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 4), fast=LimitSpec(0, 100, 0))
    denied = denied_of(reserve(book, "r1", 150, count_request=True))
    assert (denied.kind, denied.model, denied.retry_after_ns) == (LimitKind.TOKENS, "fast", None)
    assert "model fast" in denied.message()
    assert book.report("acme", "fast", 0).requests.remaining == 10
    assert tokens_left(book, "other") == 1000
    assert book.live_leases == 0


def test_the_tightest_limit_is_reported() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 4), fast=LimitSpec(0, 100, 2))
    got = reserve(book, "r1", 50)
    assert isinstance(got, Admitted)
    assert (got.tokens.limit, got.tokens.remaining) == (100, 50)
    assert (got.concurrency.limit, got.concurrency.remaining) == (2, 1)


@pytest.mark.parametrize(("model", "version"), [("fast@1", ""), ("cheapest", "fast@1"), ("cheapest", "fast")])
def test_neither_a_pinned_version_nor_an_alias_passes_around_the_limit_of_a_name(model: str, version: str) -> None:
    book = ledger(fast=LimitSpec(0, 100, 0))
    reserve(book, "r1", 100, model=model, version=version)
    assert isinstance(reserve(book, "r2", 1, model="fast"), Denied)


def test_slots_are_freed_by_settle_and_by_expiry_and_reserved_tokens_stay_charged() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 2))
    reserve(book, "r1", 100)
    reserve(book, "r2", 100, now=SECOND)
    assert denied_of(reserve(book, "r3", now=SECOND)).kind is LimitKind.CONCURRENCY
    assert isinstance(reserve(book, "r3", now=LEASE - 1), Denied)
    assert isinstance(reserve(book, "r3", 1, now=LEASE), Admitted)
    assert tokens_left(book, now=LEASE) == 799
    # An expired lease counts for a minute from its end, as what it delivered last may have been then.
    assert tokens_left(book, now=LEASE + MINUTE_NS) == 799
    assert tokens_left(book, now=LEASE + MINUTE_NS + SLOT) == 899


def test_settle_at_the_moment_of_expiry_finds_no_lease_and_counts_all_the_same() -> None:
    book = ledger(wide=LimitSpec(0, 10, 1))
    reserve(book, "r1", 10)
    assert not book.settle("acme", "fast", "r1", 4, LEASE)
    assert tokens_left(book, now=LEASE) == 6
    assert book.live_leases == 0


def test_an_unknown_lease_is_charged_once() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 0))
    assert not book.settle("acme", "fast", "lost", 300, 0)
    assert not book.settle("acme", "fast", "lost", 300, 0)
    assert tokens_left(book) == 700


def test_more_than_was_reserved_is_charged_in_full() -> None:
    book = ledger(wide=LimitSpec(0, 100, 0, spend_microusd=100))
    reserve(book, "r1", 10, spend=10)
    book.settle("acme", "fast", "r1", 150, 0, spend=120)
    assert tokens_left(book) == 0
    denied = denied_of(reserve(book, "r2", 60, now=0))
    assert denied.retry_after_ns == MINUTE_NS + SLOT
    assert isinstance(reserve(book, "r2", 60, now=MINUTE_NS + SLOT), Admitted)


def test_the_edge_takes_a_request_and_only_looks_at_tokens() -> None:
    book = ledger(wide=LimitSpec(2, 100, 0))
    for moment in (0, 10 * SECOND):
        assert isinstance(book.admit_edge("acme", requests=1, tokens=90, now=moment), Admitted)
    assert tokens_left(book) == 100
    denied = book.admit_edge("acme", requests=1, tokens=90, now=10 * SECOND)
    assert isinstance(denied, Denied)
    assert (denied.kind, denied.retry_after_ns) == (LimitKind.REQUESTS, MINUTE_NS + SLOT - 10 * SECOND)


def test_the_edge_takes_no_request_when_tokens_are_out() -> None:
    book = ledger(wide=LimitSpec(2, 100, 0))
    reserve(book, "r1", 100)
    assert isinstance(book.admit_edge("acme", requests=1, tokens=1, now=0), Denied)
    assert book.report("acme", "fast", 0).requests.remaining == 2


def test_spend_is_held_to_its_own_window() -> None:
    book = ledger(wide=LimitSpec(spend_microusd=1000))
    assert isinstance(reserve(book, "r1", spend=700), Admitted)
    denied = denied_of(reserve(book, "r2", spend=400))
    assert (denied.kind, denied.report.remaining) == (LimitKind.SPEND, 300)
    assert "1000 micro-dollars per 86400 seconds" in denied.message()
    book.settle("acme", "fast", "r1", 10, 0, spend=500)
    got = reserve(book, "r2", spend=400)
    assert isinstance(got, Admitted)
    assert got.spend == LimitReport(1000, 100, DAY_NS, DAY_NS)
    book.settle("acme", "fast", "r2", 10, 0, spend=400)
    denied = denied_of(reserve(book, "r3", spend=600, now=MINUTE_NS))
    assert denied.retry_after_ns == DAY_NS + DAY_NS // SLOTS - MINUTE_NS


@pytest.mark.parametrize(
    ("ask", "kind"),
    [({"context": 501, "output": 1}, LimitKind.MAX_CONTEXT), ({"context": 101, "output": 101}, LimitKind.MAX_OUTPUT)],
)
def test_long_contexts_and_outputs_are_refused_for_good(ask: dict[str, int], kind: LimitKind) -> None:
    book = ledger(wide=LimitSpec(max_context=500, max_output=100))
    denied = denied_of(reserve(book, "r1", **ask))
    assert (denied.kind, denied.retry_after_ns) == (kind, None)
    assert str(ask["context" if kind is LimitKind.MAX_CONTEXT else "output"]) in denied.message()
    assert isinstance(reserve(book, "r1", context=500, output=100), Admitted)


def test_over_quota_takes_a_slot_and_the_spend_and_none_of_the_quota() -> None:
    book = ledger(wide=LimitSpec(1, 100, 3, spend_microusd=100))
    reserve(book, "r1", 100, count_request=True, spend=10)
    assert isinstance(reserve(book, "r2", 50, spend=10), Denied)
    got = reserve(book, "r2", 50, spend=10, count_request=True, over_quota_allowed=True)
    assert isinstance(got, Admitted)
    assert got.over_quota
    assert (got.concurrency.remaining, got.spend.remaining) == (1, 80)
    again = reserve(book, "r2", 50, spend=10, over_quota_allowed=True)
    assert isinstance(again, Admitted)
    assert again.over_quota
    book.settle("acme", "fast", "r1", 40, 0, spend=5)
    book.settle("acme", "fast", "r2", 50, 0, spend=8)
    state = book.report("acme", "fast", 0)
    assert (state.tokens.remaining, state.spend.remaining, state.concurrency.remaining) == (60, 87, 3)


def test_over_quota_is_no_way_around_the_other_limits() -> None:
    book = ledger(wide=LimitSpec(0, 10, 1, spend_microusd=100, max_output=20))
    for ask, kind in (({"spend": 101}, LimitKind.SPEND), ({"output": 21}, LimitKind.MAX_OUTPUT)):
        assert denied_of(reserve(book, "r1", 50, over_quota_allowed=True, **ask)).kind is kind
    reserve(book, "r1", 5)
    assert denied_of(reserve(book, "r2", 50, over_quota_allowed=True)).kind is LimitKind.CONCURRENCY


def test_within_its_quota_nothing_is_over_it() -> None:
    got = reserve(ledger(wide=LimitSpec(0, 10, 1)), "r1", 10, over_quota_allowed=True)
    assert isinstance(got, Admitted)
    assert not got.over_quota
    assert got.tokens.remaining == 0


def test_the_wait_for_open_leases_is_what_leases_take() -> None:
    book = ledger(wide=LimitSpec(0, 100, 1))
    reserve(book, "r1", 100)
    assert denied_of(reserve(book, "r2", 10)).retry_after_ns == SECOND
    book.settle("acme", "fast", "r1", 0, 4 * SECOND)
    reserve(book, "r3", 100, now=4 * SECOND)
    denied = denied_of(reserve(book, "r4", 10, now=4 * SECOND))
    assert denied.retry_after_ns == 4 * SECOND
    # It never says "now", however short the leases are.
    quick = ledger(wide=LimitSpec(0, 100, 0))
    reserve(quick, "r1", 100)
    quick.settle("acme", "fast", "r1", 0, 0)
    reserve(quick, "r2", 100)
    assert denied_of(reserve(quick, "r3", 10)).retry_after_ns == SECOND


def test_the_retry_for_a_slot_shrinks_with_the_streams_that_may_end() -> None:
    book = ledger(wide=LimitSpec(0, 0, 4))
    reserve(book, "r0")
    book.settle("acme", "fast", "r0", 0, 8 * SECOND)
    for number in range(4):
        reserve(book, f"s{number}", now=8 * SECOND)
    denied = denied_of(reserve(book, "late", now=8 * SECOND))
    assert (denied.kind, denied.retry_after_ns) == (LimitKind.CONCURRENCY, 2 * SECOND)


def test_limits_change_at_once_and_keep_what_was_used() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 1))
    reserve(book, "r1", 400)
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(0, 500, 2)}, 0)
    assert tokens_left(book) == 100
    assert isinstance(reserve(book, "r2", 100), Admitted)
    book.apply_limits({}, 0)
    assert book.report("acme", "fast", 0).tokens.limit == 0


def test_defaults_hold_tenants_without_limits() -> None:
    book = Ledger(default=LimitSpec(1, 0, 0))
    assert isinstance(book.admit_edge("nobody", requests=1, tokens=1, now=0), Admitted)
    assert isinstance(book.admit_edge("nobody", requests=1, tokens=1, now=0), Denied)


def test_leases_of_a_gone_holder_end_as_if_they_had_expired() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 5))
    reserve(book, "old", 100, holder="gateway-0")
    reserve(book, "new", 10, holder="gateway-0", now=2 * SECOND)
    reserve(book, "other", 1, holder="gateway-1")
    assert book.holders == {"gateway-0", "gateway-1"}
    assert book.end_held_by("gateway-0", 3 * SECOND) == 2
    assert book.holders == {"gateway-1"}
    state = book.report("acme", "fast", 3 * SECOND)
    assert (state.tokens.remaining, state.concurrency.remaining) == (889, 4)


def test_c4_settled_ids_are_remembered_for_their_time_however_many_there_are() -> None:
    book = Ledger(settled_retention_ns=60 * SECOND)
    for number in range(300_000):
        book.settle("acme", "fast", f"r{number}", 1, number * SECOND // 10_000)
    now = 30 * SECOND
    assert book.remembered_settled == 300_000
    assert not book.settle("acme", "fast", "r0", 1, now)
    assert book.report("acme", "fast", now) == book.report("acme", "fast", now)
    assert book.remembered_settled == 300_000
    book.forget(60 * SECOND + 1 + SECOND // 2)
    assert 290_000 < book.remembered_settled <= 295_000


def test_a_settle_after_its_lease_ended_replaces_what_was_charged_then() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 5))
    reserve(book, "r1", 400)
    assert book.expire(LEASE) == 1
    assert tokens_left(book, now=LEASE) == 600
    assert not book.settle("acme", "fast", "r1", 30, LEASE + SECOND)
    assert tokens_left(book, now=LEASE + SECOND) == 970
    assert not book.settle("acme", "fast", "r1", 30, LEASE + SECOND)
    assert tokens_left(book, now=LEASE + SECOND) == 970


def test_c7_what_was_served_over_quota_is_charged_no_tokens_where_its_lease_is_not_known() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 5))
    assert not book.settle("acme", "fast", "r1", 700, 0, over_quota=True)
    assert tokens_left(book) == 1000


def test_c3_a_lease_that_is_prolonged_lives_and_one_that_is_not_ends() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 2))
    reserve(book, "runs", 100)
    reserve(book, "lost", 10)
    for turn in range(1, 9):
        now = turn * LEASE // 2
        assert book.renew("acme", ["runs", "never-seen"], lease_ns=LEASE, now=now) == ["never-seen"]
        book.expire(now)
    assert book.holds("acme", "runs")
    assert not book.holds("acme", "lost")
    assert book.report("acme", "fast", now).concurrency.remaining == 1
    assert book.settle("acme", "fast", "runs", 5, now)
    # A settle and a digest may cross: what was settled is not unknown.
    assert book.renew("acme", ["runs"], lease_ns=LEASE, now=now) == []


def test_c3_a_lease_that_was_lost_is_taken_again_whatever_the_limits_say() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 1))
    reserve(book, "other", 1000)
    again = Ask("acme", "fast", "r1", 400, granted=True)
    assert isinstance(book.reserve(again, lease_ns=LEASE, now=0), Admitted)
    assert book.live_leases == 2
    # Of one that had ended by itself, what was charged then is taken back: it is reserved again.
    assert book.expire(LEASE) == 2
    assert isinstance(book.reserve(again, lease_ns=LEASE, now=LEASE), Admitted)
    book.settle("acme", "fast", "r1", 0, LEASE)
    assert tokens_left(book, now=LEASE) == 0
    assert book.report("acme", "fast", LEASE + MINUTE_NS + SLOT).tokens.remaining == 1000
    assert isinstance(book.reserve(again, lease_ns=LEASE, now=LEASE), SettledAlready)


def test_settled_leases_do_not_pile_up_until_their_expiry() -> None:
    book = ledger(wide=LimitSpec(0, 0, 0))
    for number in range(5000):
        reserve(book, f"r{number}")
        book.settle("acme", "fast", f"r{number}", 1, 0)
    assert len(book.books._expiries) <= 1025


def test_idle_tenants_are_forgotten_when_there_are_many() -> None:
    book = Ledger(default=LimitSpec(60, 0, 0), max_idle_tenants=10)
    for number in range(100):
        book.admit_edge(f"t{number}", requests=1, tokens=0, now=number * 62 * SECOND)
    assert sum(len(bucket.scopes) for bucket in book.books.scopes.buckets.values()) <= 12


def test_a_models_requests_are_counted_though_the_edge_counted_the_tenants() -> None:
    book = ledger(wide=LimitSpec(10, 0, 0), fast=LimitSpec(requests_per_minute=2))
    for number in range(2):
        assert isinstance(book.admit_edge("acme", requests=1, tokens=0, now=0), Admitted)
        assert isinstance(reserve(book, f"r{number}"), Admitted)
    denied = denied_of(reserve(book, "r2"))
    assert (denied.kind, denied.model) == (LimitKind.REQUESTS, "fast")
    assert book.report("acme", ALL_MODELS, 0).requests.remaining == 8
    assert isinstance(reserve(book, "r2", model="other"), Admitted)
    follower = ledger(wide=LimitSpec(10, 0, 0), fast=LimitSpec(requests_per_minute=2))
    follower.apply(book.take_changes(0), ("a", "1"), 0)
    assert follower.report("acme", "fast", 0) == book.report("acme", "fast", 0)
    assert denied_of(reserve(follower, "r3")).model == "fast"


def test_an_equal_part_of_a_limit_is_never_nothing_and_leaves_lengths_alone() -> None:
    spec = LimitSpec(100, 5, 3, 7, SECOND, max_context=900, max_output=90)
    assert spec.shared(1) is spec
    assert spec.shared(4) == LimitSpec(25, 1, 1, 1, SECOND, max_context=900, max_output=90)
    assert LimitSpec().shared(4) == LimitSpec()
