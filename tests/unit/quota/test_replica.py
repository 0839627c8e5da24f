"""Replicas of one ledger: each decision counts once everywhere, whatever was lost, doubled or split meanwhile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.quota import (
    ALL_MODELS,
    MINUTE_NS,
    Admitted,
    Ask,
    Batch,
    BudgetSpec,
    Denied,
    Ledger,
    LimitSpec,
    Logged,
    Replica,
    Taken,
)
from tests.support.quota import join_all, leases_of, pieces, take_over

SECOND = 1_000_000_000
LEASE = 30 * SECOND
LIMIT = 1000


def replica(name: str, life: str = "1", *, keep_log: bool = False, limit: int = LIMIT) -> Replica:
    ledger = Ledger(part=(name, life), track_changes=True)
    ledger.apply_limits({("acme", ALL_MODELS): LimitSpec(100, limit, 20, spend_microusd=10**6)}, 0)
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=10**9)})
    return Replica(ledger, keep_log=keep_log)


def reserve(one: Replica, request_id: str, tokens: int, now: int = 0) -> bool:
    outcome = one.ledger.reserve(
        Ask("acme", "fast", request_id, tokens, spend=tokens, holder="gateway-0"), lease_ns=LEASE, now=now
    )
    return isinstance(outcome, Admitted)


def settle(one: Replica, request_id: str, tokens: int, now: int = 0) -> bool:
    return one.ledger.settle("acme", "fast", request_id, tokens, now, spend=tokens)


def tell(one: Replica, other: Replica, now: int = 0) -> bool:
    logged = one.flush(now)
    return logged is None or other.follow(logged, now)


def left(one: Replica, now: int = 0) -> tuple[int, int, int, int]:
    state = one.ledger.report("acme", "fast", now)
    return (
        state.tokens.remaining,
        state.requests.remaining,
        state.concurrency.remaining,
        state.spend.remaining,
    )


def test_c7_a_part_that_lives_is_not_forgotten_for_lives_that_are_over() -> None:
    """A replica that decides on while others are started anew, many times, is followed without asking for its state."""
    live, follower = replica("live"), replica("follower")
    for turn in range(1000):
        settle(live, f"r{turn}", 1)
        assert tell(live, follower)
        assert follower.follow(Logged(("other", f"life-{turn}"), 1, Batch(taken=(Taken("acme", 1),))), 0)
    assert left(follower)[0] == LIMIT - 1000
    assert len(follower._seen) < 1000


def test_a_lease_of_one_replica_is_settled_on_another_exactly_once() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 400)
    tell(a, b)
    assert left(a) == left(b) == (600, 99, 19, 10**6 - 400)
    assert settle(b, "r1", 100)
    assert tell(b, a)
    assert left(a) == left(b) == (900, 99, 20, 10**6 - 100)
    assert not settle(a, "r1", 100)
    assert a.flush(0) is None
    assert left(a)[0] == 900


def test_a_settle_that_overtakes_its_lease_is_charged_once() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 400)
    assert not settle(b, "r1", 100)
    tell(a, b)
    tell(b, a)
    assert left(a) == left(b) == (900, 99, 20, 10**6 - 100)


def test_an_expired_lease_counts_once_everywhere() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 400)
    tell(a, b)
    for one in (a, b):
        assert one.ledger.expire(LEASE) == 1
    assert tell(a, b, LEASE)
    assert left(a, LEASE) == left(b, LEASE) == (600, 99, 20, 10**6 - 400)


def test_an_expired_lease_counts_once_for_who_joins_later() -> None:
    a, b, late = replica("a"), replica("b"), replica("c")
    reserve(a, "r1", 400)
    tell(a, b)
    for one in (a, b):
        one.ledger.expire(LEASE)
        reserve(one, f"more-{one.ledger.part[0]}", 10, LEASE)
        one.flush(LEASE)
    for one in (a, b):
        take_over(late, one, LEASE)
    assert left(late, LEASE)[0] == 580


def test_a_state_that_knows_less_takes_nothing_away() -> None:
    a, b, c = replica("a"), replica("b"), replica("c")
    reserve(c, "r1", 100)
    first = c.flush(0)
    assert first is not None
    assert a.follow(first, 0)
    assert b.follow(first, 0)
    reserve(c, "r2", 200)
    settle(c, "r2", 200)
    assert tell(c, b)
    take_over(b, a, 0)
    assert left(b) == (700, 98, 19, 10**6 - 300)
    reserve(c, "r3", 50)
    assert tell(c, b)


def test_leases_of_a_gone_gateway_end_everywhere() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 400)
    tell(a, b)
    assert a.ledger.end_held_by("gateway-0", SECOND) == 1
    tell(a, b, SECOND)
    assert left(a, SECOND) == left(b, SECOND) == (600, 99, 20, 10**6 - 400)


def test_what_ended_elsewhere_while_a_replica_was_away_still_counts() -> None:
    """Its former life's leases ended on the others, by their time or with their gateway, without a decision of that
    life: its journal knows that life as well as they do, and the charge comes with the end."""
    for by_itself in (True, False):
        a, b = replica("a", keep_log=True), replica("b")
        reserve(a, "r1", 400)
        tell(a, b)
        again = replica("a", "2")
        for logged in a.take_log():
            assert again.follow(logged, 0)
        ended = b.ledger.expire(LEASE) if by_itself else b.ledger.end_held_by("gateway-0", LEASE)
        assert ended == 1
        b.flush(LEASE)
        take_over(again, b, LEASE)
        assert left(again, LEASE) == left(b, LEASE) == (600, 99, 20, 10**6 - 400)
        assert not settle(again, "r1", 400, LEASE)
        assert left(again, LEASE)[0] == 600


def test_what_ended_long_ago_does_not_come_back_with_the_state_of_who_missed_it() -> None:
    """After a split that lasted longer than settled ids are remembered."""
    a, b = replica("a"), replica("b")
    lease = 3600 * SECOND
    for number in range(3):
        ask = Ask("acme", "fast", f"r{number}", 100, holder="gateway-0")
        a.ledger.reserve(ask, lease_ns=lease, now=0)
    tell(a, b)
    settle(a, "r0", 10, SECOND)
    settle(a, "r1", 10, 500 * SECOND)
    a.flush(500 * SECOND)  # none of it reached the other
    now = 600 * SECOND
    settle(a, "new", 10, now)
    a.flush(now)
    take_over(a, b, now)
    take_over(b, a, now)
    assert a.ledger.live_leases == b.ledger.live_leases == 0
    # No lease is longer than ids are remembered: the one that nobody settled has ended.
    assert left(a, now) == left(b, now) == (890, 100, 20, 10**6 - 30)


def test_a_missing_batch_is_noticed_and_the_state_makes_it_good() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 100)
    assert a.flush(0) is not None  # lost on its way
    reserve(a, "r2", 200)
    assert not tell(a, b)
    assert left(b)[0] == LIMIT
    reserve(b, "mine", 50)
    take_over(b, a, 0)
    # The batch that came early is in the state already and must not count again.
    assert left(b) == (650, 97, 17, 10**6 - 350)
    reserve(a, "r3", 10)
    assert tell(a, b)
    assert left(b)[0] == 640


def test_batches_that_come_while_the_state_is_fetched_are_not_lost() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 100)
    a.flush(0)
    reserve(a, "r2", 200)
    assert not tell(a, b)
    fetched = list(pieces(a, 0))
    reserve(a, "r3", 300)
    assert not tell(a, b)
    join_all(b, fetched, 0)
    assert left(b)[0] == 400
    assert tell(a, b)


def test_a_batch_told_twice_counts_once() -> None:
    a, b = replica("a"), replica("b")
    a.ledger.admit_edge("acme", requests=3, tokens=0, now=0)
    logged = a.flush(0)
    assert logged is not None
    assert b.follow(logged, 0)
    assert b.follow(logged, 0)
    assert left(b)[1] == 97


def test_a_new_life_begins_anew_and_the_old_ones_use_stays() -> None:
    a, b = replica("a"), replica("b")
    reserve(a, "r1", 400)
    settle(a, "r1", 400)
    tell(a, b)
    again = replica("a", "2")
    take_over(again, b, 0)
    assert left(again)[0] == 600
    reserve(again, "r2", 100)
    assert tell(again, b)
    assert left(b) == left(again)
    assert left(b)[0] == 500


def test_the_log_gives_back_all_that_was_applied() -> None:
    a, b = replica("a", keep_log=True), replica("b")
    reserve(b, "theirs", 10)
    tell(b, a)
    reserve(a, "mine", 20)
    a.flush(0)
    log = a.take_log()
    assert [entry.part[0] for entry in log] == ["b", "a"]
    assert a.take_log() == ()
    again = replica("a", "2")
    for entry in log:
        assert again.follow(entry, 0)
    assert left(again) == left(a)


def test_two_sides_of_a_split_overshoot_by_what_the_other_side_admitted() -> None:
    """The bound: what the others admitted since they were last heard. With two replicas that hear nothing of each other
    it is one limit; healed, both know everything and admit nothing more."""
    a, b = replica("a"), replica("b")
    reserve(a, "before", 300)
    tell(a, b)
    admitted = {"a": 0, "b": 0}
    for number in range(40):
        for one in (a, b):
            name = one.ledger.part[0]
            admitted[name] += 100 * reserve(one, f"{name}{number}", 100)
    assert admitted == {"a": 700, "b": 700}
    total = 300 + sum(admitted.values())
    assert total - LIMIT <= min(admitted.values())
    tell(a, b)
    tell(b, a)
    assert left(a)[0] == left(b)[0] == 0
    assert isinstance(a.ledger.reserve(Ask("acme", "fast", "more", 1), lease_ns=LEASE, now=0), Denied)


EVENT = st.tuples(
    st.sampled_from(["reserve", "settle", "edge", "tell", "lose", "fetch", "restart"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 11),
    st.integers(1, 60),
    st.integers(0, 3 * SECOND),
)


@settings(deadline=None, max_examples=80)
@given(events=st.lists(EVENT, max_size=60))
def test_after_any_history_all_replicas_agree_on_what_was_used(events) -> None:
    """Every request is settled where somebody knows its lease or nobody ever settles it twice within one interval."""
    names = "abc"
    replicas = {name: replica(name) for name in names}
    lives = dict.fromkeys(names, 1)
    waiting: dict[tuple[str, str], list[Logged]] = {(x, y): [] for x in names for y in names if x != y}
    now = 0
    settled: dict[str, int] = {}
    opened: set[str] = set()
    requests = 0

    def publish(name: str) -> None:
        logged = replicas[name].flush(now)
        if logged is not None:
            for other in names:
                if other != name:
                    waiting[name, other].append(logged)

    def fetch(source: str, target: str) -> None:
        publish(source)
        take_over(replicas[target], replicas[source], now)

    def deliver(source: str, target: str) -> None:
        queue, waiting[source, target] = waiting[source, target], []
        for logged in queue:
            if not replicas[target].follow(logged, now):
                fetch(source, target)

    for action, who, whom, number, tokens, gap in events:
        now += gap
        name, other, rid = names[who], names[whom], f"r{number}"
        if action == "reserve" and rid not in opened and rid not in settled:
            if reserve(replicas[name], rid, tokens, now):
                opened.add(rid)
                requests += 1
        elif action == "settle" and rid not in settled:
            settle(replicas[name], rid, tokens, now)
            settled[rid] = tokens
        elif action == "edge":
            requests += isinstance(replicas[name].ledger.admit_edge("acme", requests=1, tokens=0, now=now), Admitted)
        elif action == "restart":
            # All that it decided was told before it went, and what had been lost on its way asked for; its memory is
            # another's state.
            publish(name)
            for target in names:
                if target != name:
                    deliver(name, target)
                    fetch(name, target)
                    waiting[target, name].clear()
            lives[name] += 1
            replicas[name] = replica(name, str(lives[name]))
            fetch(names[(who + 1) % 3], name)
        elif name != other:
            publish(name)
            if action == "lose":
                waiting[name, other].clear()
            elif action == "tell":
                deliver(name, other)
            elif action == "fetch":
                fetch(name, other)
        if now > 25 * SECOND:
            break
    for _ in range(2):
        for source in names:
            publish(source)
            for target in names:
                if target != source:
                    deliver(source, target)
                    fetch(source, target)
    views = {left(replicas[name], now) for name in names}
    assert len(views) == 1
    (tokens_left, requests_left, slots, _) = views.pop()
    live = [opened_id for opened_id in opened if opened_id not in settled]
    reserved = sum(lease.tokens for lease in leases_of(replicas["a"].ledger).values())
    assert slots == 20 - len(live)
    assert tokens_left == max(0, LIMIT - sum(settled.values()) - reserved)
    assert requests_left == max(0, 100 - requests)
    assert now < MINUTE_NS
    budgets = [replicas[name].ledger.budgets.of("acme") for name in names]
    assert {budget.record(now).month.microusd for budget in budgets if budget} == {sum(settled.values())}
