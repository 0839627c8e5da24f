"""Any history of reserves, settles and losses: no minute delivers more than the limit, nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.quota import ALL_MODELS, MINUTE_NS, SLOTS, Admitted, Ask, Denied, Ledger, LimitSpec

SECOND = 1_000_000_000
LEASE = 45 * SECOND
SLOT = MINUTE_NS // SLOTS
WIDE, FAST = LimitSpec(12, 300, 4, spend_microusd=500, spend_window_ns=MINUTE_NS), LimitSpec(0, 120, 2)
STEP = st.tuples(
    st.sampled_from(["reserve", "reserve", "settle", "edge", "deliver"]),
    st.sampled_from(["fast", "fast@1", "big"]),
    st.integers(0, 15),
    st.integers(0, 90),
    st.integers(0, 20 * SECOND),
)


@dataclass
class Running:
    """A request that was admitted."""

    model: str
    reserved: int
    ends: int
    delivered: int = 0


def in_any_minute(events: Sequence[tuple[int, int]]) -> int:
    """The most that a minute ever saw: it is enough to look at those that end with an event."""
    return max((sum(n for at, n in events if end - MINUTE_NS < at <= end) for end, _ in events), default=0)


@settings(deadline=None)
@given(steps=st.lists(STEP, max_size=90))
def test_no_minute_delivers_more_than_the_limit(steps) -> None:
    book = Ledger()
    book.apply_limits({("acme", ALL_MODELS): WIDE, ("acme", "fast"): FAST}, 0)
    now = 0
    running: dict[str, Running] = {}
    delivered: list[tuple[int, int]] = []
    delivered_fast: list[tuple[int, int]] = []
    counted: list[tuple[int, int]] = []

    def deliver(request: Running, tokens: int) -> None:
        request.delivered += tokens
        delivered.append((now, tokens))
        if request.model != "big":
            delivered_fast.append((now, tokens))

    for action, model, number, amount, gap in steps:
        now += gap
        running = {rid: request for rid, request in running.items() if request.ends > now}
        rid = f"r{number}"
        request = running.get(rid)
        if action == "edge":
            if isinstance(book.admit_edge("acme", requests=1, tokens=amount, now=now), Admitted):
                counted.append((now, 1))
        elif action == "deliver" and request is not None:
            deliver(request, min(amount, request.reserved - request.delivered))
        elif action == "settle":
            if request is not None:
                deliver(request, min(amount, request.reserved - request.delivered))
                del running[rid]
            used = request.delivered if request is not None else 0
            assert book.settle("acme", model, rid, used, now, spend=used) == (request is not None)
        elif action == "reserve" and request is None:
            outcome = book.reserve(Ask("acme", model, rid, amount, spend=amount), lease_ns=LEASE, now=now)
            if isinstance(outcome, Admitted):
                running[rid] = Running(model, amount, now + LEASE)
                counted.append((now, 1))
        book.expire(now)
        assert book.live_leases == len(running) <= WIDE.concurrency
        assert sum(request.model != "big" for request in running.values()) <= FAST.concurrency
        state = book.report("acme", "fast", now)
        held = sum(request.reserved for request in running.values())
        assert state.tokens.remaining <= WIDE.tokens_per_minute - held
    assert in_any_minute(delivered) <= WIDE.tokens_per_minute
    assert in_any_minute(delivered) <= WIDE.spend_microusd
    assert in_any_minute(delivered_fast) <= FAST.tokens_per_minute
    assert in_any_minute(counted) <= WIDE.requests_per_minute


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 8), st.integers(1, 200), st.integers(0, 200), st.integers(0, 15 * SECOND)
        ),
        max_size=60,
    )
)
def test_use_is_what_was_settled_and_what_is_open_and_the_headers_say_so(steps) -> None:
    book = Ledger()
    limit = LimitSpec(0, 300, 0)
    book.apply_limits({("acme", ALL_MODELS): limit}, 0)
    now = 0
    live: dict[str, tuple[int, int]] = {}
    used: list[tuple[int, int]] = []
    for settle, number, reserved, actual, gap in steps:
        now += gap
        for rid, (tokens, ends) in list(live.items()):
            if ends <= now:
                used.append((now, tokens))
                del live[rid]
        book.expire(now)
        rid = f"r{number}"
        if settle and rid in live:
            book.settle("acme", "fast", rid, actual, now)
            used.append((now, actual))
            del live[rid]
        held = sum(tokens for tokens, _ in live.values())
        exact = held + sum(n for at, n in used if at > now - MINUTE_NS)
        loose = held + sum(n for at, n in used if at > now - MINUTE_NS - SLOT)
        left = book.report("acme", "fast", now).tokens.remaining
        assert max(0, 300 - loose) <= left <= max(0, 300 - exact)
        # What the header says is left can be had, and no more.
        if left < 300:
            over = book.reserve(Ask("acme", "fast", f"probe-{now}-{number}", left + 1), lease_ns=LEASE, now=now)
            assert isinstance(over, Denied)
            assert over.retry_after_ns is None or over.retry_after_ns > 0
        fresh = f"{rid}-{now}-{settle}"
        if left and fresh not in live:
            taken = min(reserved, left)
            assert isinstance(book.reserve(Ask("acme", "fast", fresh, taken), lease_ns=LEASE, now=now), Admitted)
            if fresh not in live:
                live[fresh] = (taken, now + LEASE)


@settings(deadline=None)
@given(
    uses=st.lists(st.tuples(st.integers(0, 8 * SECOND), st.integers(1, 300)), min_size=1, max_size=20),
    cost=st.integers(1, 300),
)
def test_the_time_to_come_back_is_exact_when_nothing_is_open(uses, cost: int) -> None:
    book = Ledger()
    book.apply_limits({("acme", ALL_MODELS): LimitSpec(0, 300, 0)}, 0)
    now = 0
    for number, (gap, tokens) in enumerate(uses):
        now += gap
        book.settle("acme", "fast", f"r{number}", tokens, now)
    outcome = book.reserve(Ask("acme", "fast", "probe", cost), lease_ns=LEASE, now=now)
    if isinstance(outcome, Denied):
        wait = outcome.retry_after_ns
        assert wait is not None
        early = book.reserve(Ask("acme", "fast", "early", cost), lease_ns=LEASE, now=now + wait - 1)
        assert isinstance(early, Denied)
        late = book.reserve(Ask("acme", "fast", "late", cost), lease_ns=LEASE, now=now + wait)
        assert isinstance(late, Admitted)
