"""Reservations that grow while their request runs: within the limit, known to whoever follows, settled once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.quota import (
    ALL_MODELS,
    MINUTE_NS,
    Admitted,
    Ask,
    Bridge,
    Denied,
    Ledger,
    LimitKind,
    LimitSpec,
    Replica,
    SettledAlready,
    Share,
)
from libs.quota.amount import NO_LIMIT, Amount
from tests.support.quota import leases_of, take_over

SECOND = 1_000_000_000
LIMIT = 1000


def ledger(name: str = "a", **more: int) -> Ledger:
    made = Ledger(part=(name, "1"), track_changes=True)
    made.apply_limits({("acme", ALL_MODELS): LimitSpec(tokens_per_minute=LIMIT, requests_per_minute=10, **more)}, 0)
    return made


def ask(request_id: str, tokens: int, *, spend: int = 0, holder: str = "g", **more: bool) -> Ask:
    return Ask("acme", "fast", request_id, tokens, spend=spend, holder=holder, grows=True, **more)


def reserve(
    target: Ledger, request_id: str, tokens: int, now: int = 0, **more: int
) -> Admitted | Denied | SettledAlready:
    return target.reserve(ask(request_id, tokens, spend=more.get("spend", 0)), lease_ns=20 * SECOND, now=now)


def left(target: Ledger, now: int = 0) -> int:
    return target.report("acme", "fast", now).tokens.remaining


def test_c7_a_repeat_with_more_tokens_takes_the_difference_or_nothing() -> None:
    target = ledger(concurrency=1)
    first = reserve(target, "r", 600)
    assert isinstance(first, Admitted)
    grown = reserve(target, "r", 900)
    assert isinstance(grown, Admitted)
    assert (left(target), grown.requests.remaining, grown.concurrency.remaining) == (100, 9, 0)
    denied = reserve(target, "r", 1001)
    assert isinstance(denied, Denied)
    assert (denied.kind, denied.cost) == (LimitKind.TOKENS, 101)
    assert left(target) == 100
    assert isinstance(reserve(target, "r", 600), Admitted)  # late: what it has stays
    assert left(target) == 100
    assert target.settle("acme", "fast", "r", 650, 0)
    assert left(target) == LIMIT - 650
    assert isinstance(reserve(target, "r", 700), SettledAlready)


def test_c7_money_grows_with_the_tokens() -> None:
    target = ledger(spend_microusd=100)
    assert isinstance(reserve(target, "r", 10, spend=60), Admitted)
    denied = reserve(target, "r", 20, spend=101)
    assert isinstance(denied, Denied)
    assert (denied.kind, denied.cost) == (LimitKind.SPEND, 41)
    assert isinstance(reserve(target, "r", 20, spend=100), Admitted)
    assert target.report("acme", "fast", 0).spend.remaining == 0


def test_c7_whoever_follows_knows_what_a_lease_grew_to() -> None:
    one, follower, late = Replica(ledger("a")), Replica(ledger("b")), Replica(ledger("c"))
    reserve(one.ledger, "r", 100)
    reserve(one.ledger, "over", 100)
    for step in (lambda: reserve(one.ledger, "r", 400), lambda: one.ledger.settle("acme", "fast", "over", 50, 0)):
        logged = one.flush(0)
        assert logged is not None
        assert follower.follow(logged, 0)
        take_over(late, one, 0)
        step()
    reserve(one.ledger, "r", 500)
    logged = one.flush(0)
    assert logged is not None
    assert follower.follow(logged, 0)
    take_over(late, one, 0)
    for each in (one, follower, late):
        assert leases_of(each.ledger)["r"].tokens == 500
        assert left(each.ledger) == LIMIT - 550
        assert each.ledger.report("acme", "fast", 0).requests.remaining == 8


@pytest.mark.parametrize("joined", [False, True])
def test_c7_whoever_hears_of_a_lease_again_keeps_it_as_long_as_its_owner(joined: bool) -> None:
    """Renewals are told to nobody: with the growth, and with the state, comes how long the lease goes on."""
    one, other = Replica(ledger("a")), Replica(ledger("b"))
    reserve(one.ledger, "r", 100)
    logged = one.flush(0)
    assert logged is not None
    assert other.follow(logged, 0)
    now = 15 * SECOND
    assert one.ledger.renew("acme", ["r"], lease_ns=20 * SECOND, now=now) == []
    if joined:
        take_over(other, one, now)
    else:
        reserve(one.ledger, "r", 150, now)
        logged = one.flush(now)
        assert logged is not None
        assert other.follow(logged, now)
    other.ledger.expire(now + 19 * SECOND)
    assert other.ledger.holds("acme", "r")
    other.ledger.expire(now + 20 * SECOND)
    assert not other.ledger.holds("acme", "r")


def test_c7_a_lease_that_ended_by_itself_grows_in_the_place_of_what_was_charged() -> None:
    target = ledger()
    reserve(target, "r", 600)
    now = 21 * SECOND
    assert left(target, now) == 400
    assert isinstance(reserve(target, "r", 1001, now), Denied)
    assert left(target, now) == 400
    assert isinstance(reserve(target, "r", 1000, now), Admitted)
    assert left(target, now) == 0
    target.settle("acme", "fast", "r", 700, now)
    assert left(target, now) == 300


@pytest.mark.parametrize("heard", ["ended", "live"])
def test_what_a_lease_grew_to_just_before_it_ended_counts_wherever_that_is_heard(heard: str) -> None:
    """Its gateway died: growth and end are in one batch, which comes before or after the follower ended it itself."""
    owner, other = ledger(), ledger("b")
    reserve(owner, "r", 10)
    other.apply(owner.take_changes(0), owner.part, 0)
    reserve(owner, "r", 900)
    now = 1 if heard == "live" else 21 * SECOND
    owner.end_held_by("g", now)
    other.expire(now)
    other.apply(owner.take_changes(now), owner.part, now)
    other.expire(now)
    assert left(other, now) == left(owner, now) == LIMIT - 900


def test_c7_what_is_told_to_other_gateways_is_not_grown_into() -> None:
    target = ledger()
    target.terms.holders = 2
    target.tell(ask("x", 1, holder="other"), 0, 0)
    assert isinstance(reserve(target, "r", 100), Admitted)
    assert isinstance(reserve(target, "r", LIMIT - LIMIT // 16 + 1), Denied)
    assert isinstance(reserve(target, "r", LIMIT - LIMIT // 16), Admitted)


@pytest.mark.parametrize("granted_by_owner", [True, False])
def test_c7_a_gateway_gives_out_of_its_share_only_what_is_more(granted_by_owner: bool) -> None:
    bridge: Bridge[int] = Bridge()
    bridge.apply({("acme", ALL_MODELS): LimitSpec(tokens_per_minute=LIMIT)}, {}, 2, 0)
    bridge.told(
        "acme", 1, [Share(ALL_MODELS, Amount(60 if granted_by_owner else 160, NO_LIMIT, NO_LIMIT))], 10 * SECOND, 0
    )
    terms = {"lease_ns": MINUTE_NS, "until": 1 << 62, "now": 0}
    if granted_by_owner:
        bridge.served(("acme", "r"), 100, over_quota=False, until=1 << 62, tokens=100, spend=0)
    else:
        assert isinstance(bridge.reserve(ask("r", 100), 100, **terms), Admitted)
    assert list(bridge.grown(0)) == []
    assert isinstance(bridge.reserve(ask("r", 161), 161, **terms), Denied)
    assert isinstance(bridge.reserve(ask("r", 130), 130, **terms), Admitted)
    assert isinstance(bridge.reserve(ask("r", 160), 160, **terms), Admitted)
    assert isinstance(bridge.reserve(ask("r2", 1), 1, **terms), Denied)
    assert list(bridge.grown(0)) == [("acme", "r")]
    assert bridge.lost(("acme", "r")) == (160, False)


def test_c7_a_gateways_own_lease_that_ended_gives_nothing_for_free() -> None:
    bridge: Bridge[int] = Bridge()
    bridge.apply({("acme", ALL_MODELS): LimitSpec(tokens_per_minute=LIMIT)}, {}, 2, 0)
    terms = {"lease_ns": MINUTE_NS, "until": 1 << 62}
    assert isinstance(bridge.reserve(ask("r", 400), 400, now=0, **terms), Admitted)
    now = MINUTE_NS + SECOND
    assert isinstance(bridge.reserve(ask("r", 501), 501, now=now, **terms), Denied)
    assert isinstance(bridge.reserve(ask("r", 500), 500, now=now, **terms), Admitted)


Move = tuple[str, int, int, float]
MOVES = st.tuples(
    st.sampled_from(["open", "grow", "grow", "settle", "wait", "follow"]),
    st.integers(0, 5),
    st.integers(1, 500),
    st.floats(0, 1),
)


@given(st.lists(MOVES, max_size=60))
def test_c7_no_minute_sees_more_than_the_limit_however_reservations_grow(moves: list[Move]) -> None:
    """What runs delivers no more than it reserved, and ends after any part of that; followers know the same."""
    one, follower, now = Replica(ledger("a")), Replica(ledger("b")), 0
    open_, settled = dict[str, int](), list[tuple[int, int]]()
    for turn, (move, place, tokens, part) in enumerate(moves):
        request_id = list(open_)[place % len(open_)] if open_ else ""
        if move == "open":
            if isinstance(reserve(one.ledger, f"r{turn}", tokens, now), Admitted):
                open_[f"r{turn}"] = tokens
        elif move == "wait":
            now += int(part * 40 * SECOND)
            one.ledger.renew("acme", open_, lease_ns=20 * SECOND, now=now)
        elif move == "follow":
            logged = one.flush(now)
            assert logged is None or follower.follow(logged, now)
            assert left(follower.ledger, now) <= left(one.ledger, now)
        elif request_id and move == "grow":
            if isinstance(reserve(one.ledger, request_id, open_[request_id] + tokens, now), Admitted):
                open_[request_id] += tokens
        elif request_id:
            used = int(part * open_.pop(request_id))
            one.ledger.settle("acme", "fast", request_id, used, now)
            settled.append((now, used))
        assert sum(open_.values()) + sum(used for at, used in settled if at > now - MINUTE_NS) <= LIMIT
