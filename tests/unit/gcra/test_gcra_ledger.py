"""Reserve and settle over tenant-wide and per-model limits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.gcra import (
    ALL_MODELS,
    MINUTE_NS,
    Admitted,
    Denied,
    Ledger,
    LimitKind,
    LimitReport,
    LimitSpec,
    SettledAlready,
)

SECOND = 1_000_000_000
LEASE = 30 * SECOND


def ledger(**specs: LimitSpec) -> Ledger:
    """Keyword `wide` is the tenant-wide limit of "acme", any other the limit of that model."""
    built = Ledger(track_changes=True)
    built.apply_limits({("acme", ALL_MODELS if name == "wide" else name): spec for name, spec in specs.items()}, 0)
    return built


def reserve(
    book: Ledger, request_id: str, tokens: int = 10, *, model: str = "fast", now: int = 0, count_request: bool = False
) -> Admitted | Denied | SettledAlready:
    return book.reserve("acme", model, request_id, tokens, count_request=count_request, lease_ns=LEASE, now=now)


def tokens_left(book: Ledger, model: str = "fast", now: int = 0) -> int:
    return book.report("acme", model, now).tokens.remaining


def test_reserve_takes_and_settle_replaces_by_actual() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 4))
    assert reserve(book, "r1", 400, count_request=True) == Admitted(
        LimitReport(10, 9, 6 * SECOND), LimitReport(1000, 600, 24 * SECOND), LimitReport(4, 3, 0)
    )
    assert book.settle("acme", "fast", "r1", 150, 0)
    assert book.report("acme", "fast", 0) == Admitted(
        LimitReport(10, 9, 6 * SECOND), LimitReport(1000, 850, 9 * SECOND), LimitReport(4, 4, 0)
    )


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
    other = book.reserve("globex", "fast", "r1", 5, count_request=False, lease_ns=LEASE, now=0)
    assert isinstance(other, Admitted)
    assert book.live_leases == 2


def test_all_scopes_or_nothing() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 4), fast=LimitSpec(0, 100, 0))
    denied = reserve(book, "r1", 150, count_request=True)
    assert isinstance(denied, Denied)
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


def test_a_pinned_version_is_held_to_the_limit_of_its_name() -> None:
    book = ledger(fast=LimitSpec(0, 100, 0))
    reserve(book, "r1", 100, model="fast@1")
    assert isinstance(reserve(book, "r2", 1, model="fast"), Denied)


def test_slots_are_freed_by_settle_and_by_expiry_and_tokens_stay_charged() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 2))
    reserve(book, "r1", 100)
    reserve(book, "r2", 100, now=SECOND)
    denied = reserve(book, "r3", now=SECOND)
    assert isinstance(denied, Denied)
    assert denied.kind is LimitKind.CONCURRENCY
    assert isinstance(reserve(book, "r3", now=LEASE - 1), Denied)
    left = tokens_left(book, now=LEASE)
    assert isinstance(reserve(book, "r3", 0, now=LEASE), Admitted)
    assert tokens_left(book, now=LEASE) == left
    assert not book.settle("acme", "fast", "r1", 0, LEASE)
    assert tokens_left(book, now=LEASE) == left


def test_settle_at_the_moment_of_expiry_changes_nothing() -> None:
    book = ledger(wide=LimitSpec(0, 10, 1))
    reserve(book, "r1", 10)
    before = tokens_left(book, now=LEASE)
    assert not book.settle("acme", "fast", "r1", 0, LEASE)
    assert tokens_left(book, now=LEASE) == before
    assert book.live_leases == 0


def test_an_unknown_lease_is_charged_once() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 0))
    assert not book.settle("acme", "fast", "lost", 300, 0)
    assert not book.settle("acme", "fast", "lost", 300, 0)
    assert tokens_left(book) == 700


def test_the_edge_takes_a_request_and_only_looks_at_tokens() -> None:
    book = ledger(wide=LimitSpec(2, 100, 0))
    for _ in range(2):
        assert isinstance(book.admit_edge("acme", requests=1, tokens=90, now=0), Admitted)
    assert tokens_left(book) == 100
    denied = book.admit_edge("acme", requests=1, tokens=90, now=0)
    assert isinstance(denied, Denied)
    assert (denied.kind, denied.retry_after_ns) == (LimitKind.REQUESTS, MINUTE_NS // 2)


def test_the_edge_takes_no_request_when_tokens_are_out() -> None:
    book = ledger(wide=LimitSpec(2, 100, 0))
    reserve(book, "r1", 100)
    assert isinstance(book.admit_edge("acme", requests=1, tokens=1, now=0), Denied)
    assert book.report("acme", "fast", 0).requests.remaining == 2


def test_limits_change_at_once_and_keep_what_was_consumed() -> None:
    book = ledger(wide=LimitSpec(0, 1000, 1))
    reserve(book, "r1", 400)
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(0, 500, 2)}, 0)
    assert tokens_left(book) == 100
    assert isinstance(reserve(book, "r2", 100), Admitted)
    book.apply_limits({}, 0)
    assert book.report("acme", "fast", 0).tokens.limit == 0


def test_a_limit_that_appears_under_a_lease_is_not_refunded_by_it() -> None:
    book = ledger()
    reserve(book, "r1", 400)
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(0, 100, 0)}, 0)
    reserve(book, "r2", 100)
    book.settle("acme", "fast", "r1", 0, 0)
    assert tokens_left(book) == 0


def test_defaults_hold_tenants_without_limits() -> None:
    book = Ledger(default=LimitSpec(1, 0, 0))
    assert isinstance(book.admit_edge("nobody", requests=1, tokens=1, now=0), Admitted)
    assert isinstance(book.admit_edge("nobody", requests=1, tokens=1, now=0), Denied)


def test_settled_ids_are_forgotten_after_their_time_and_above_their_number() -> None:
    book = Ledger(settled_retention_ns=SECOND, max_settled=3)
    for number in range(5):
        book.settle("acme", "fast", f"r{number}", 0, 0)
    assert book.remembered_settled == 3
    book.settle("acme", "fast", "later", 0, 2 * SECOND)
    assert book.remembered_settled == 1


def test_settled_leases_do_not_pile_up_until_their_expiry() -> None:
    book = ledger(wide=LimitSpec(0, 0, 0))
    for number in range(5000):
        reserve(book, f"r{number}")
        book.settle("acme", "fast", f"r{number}", 1, 0)
    assert len(book._expiries) <= 1025


def test_idle_tenants_are_forgotten_when_there_are_many() -> None:
    book = Ledger(default=LimitSpec(60, 0, 0), max_idle_tenants=10)
    for number in range(100):
        book.admit_edge(f"t{number}", requests=1, tokens=0, now=number * 2 * SECOND)
    assert len(book._wide) <= 12


def test_state_survives_a_restart() -> None:
    book = ledger(wide=LimitSpec(10, 1000, 2), fast=LimitSpec(0, 500, 0))
    reserve(book, "live", 200)
    reserve(book, "done", 100)
    book.settle("acme", "fast", "done", 50, 0)
    changes = book.take_changes(0)
    assert book.take_changes(0) == ((), (), ())
    again = Ledger(track_changes=True)
    for scope in changes.scopes:
        again.restore_scope(scope, 0, 7)
    for key in changes.settled:
        again.restore_settled(key, 7)
    for lease in changes.leases:
        again.restore_lease(lease, 0, 7)
    again.apply_limits({("acme", ALL_MODELS): LimitSpec(10, 1000, 2), ("acme", "fast"): LimitSpec(0, 500, 0)}, 7)
    assert again.report("acme", "fast", 7) == book.report("acme", "fast", 0)
    assert not again.settle("acme", "fast", "done", 500, 7)
    assert again.settle("acme", "fast", "live", 0, 7)
    assert tokens_left(again, now=7) == 450


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "settle", "edge"]),
            st.sampled_from(["fast", "fast@1", "big"]),
            st.integers(0, 15),
            st.integers(0, 80),
            st.integers(0, 10 * SECOND),
        ),
        max_size=80,
    )
)
def test_no_history_breaks_the_limits(steps: list[tuple[str, str, int, int, int]]) -> None:
    book = ledger(wide=LimitSpec(30, 300, 3), fast=LimitSpec(0, 120, 2))
    now = requests = net = 0
    live: dict[str, tuple[int, int]] = {}
    for action, model, number, amount, gap in steps:
        now += gap
        live = {rid: (tokens, ends) for rid, (tokens, ends) in live.items() if ends > now}
        rid = f"r{number}"
        if action == "settle":
            known = book.settle("acme", model, rid, min(amount, live.get(rid, (0, 0))[0]), now)
            assert known == (rid in live)
            if rid in live:
                reserved, _ = live.pop(rid)
                net += min(amount, reserved) - reserved
        elif action == "edge":
            requests += isinstance(book.admit_edge("acme", requests=1, tokens=amount, now=now), Admitted)
        elif isinstance(reserve(book, rid, amount, model=model, now=now), Admitted) and rid not in live:
            live[rid] = (amount, now + LEASE)
            net += amount
            assert (net - 300) * MINUTE_NS <= 300 * now
        assert len(live) <= 3
        assert (requests - 30) * MINUTE_NS <= 30 * now
        # A lease ends at its time even when nothing touches the ledger until then.
        book.expire(now)
        assert book.live_leases == len(live)
