"""Leases that nobody settles, on replicas that miss one another's decisions: what they reserved is never forgotten."""

from __future__ import annotations

from itertools import permutations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.quota import ALL_MODELS, Ask, Ledger, LimitSpec, Logged, Replica
from tests.support.quota import take_over

SECOND = 1_000_000_000
LIMIT = 10**9
NAMES = "abc"

EVENT = st.tuples(
    st.sampled_from(["reserve", "settle", "gone", "tell", "lose", "fetch"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 50),
    st.integers(0, SECOND),
)


def replica(name: str) -> Replica:
    ledger = Ledger(part=(name, "1"), track_changes=True)
    ledger.apply_limits({("acme", ALL_MODELS): LimitSpec(tokens_per_minute=LIMIT)}, 0)
    return Replica(ledger)


@settings(deadline=None, max_examples=80)
@given(st.lists(EVENT, max_size=40))
@example(
    [  # c ends a lease that b has not ended yet, and takes over from b the part in which it was charged
        ("reserve", 0, 1, 10, 0),
        ("tell", 0, 1, 1, 0),
        ("tell", 0, 2, 1, 0),
        ("reserve", 0, 1, 20, 0),
        ("tell", 0, 1, 1, 0),
        ("gone", 2, 0, 1, 0),
        ("fetch", 1, 2, 1, 0),
    ]
)
def test_what_ended_by_itself_counts_on_every_replica_whatever_it_missed(
    events: list[tuple[str, int, int, int, int]],
) -> None:
    replicas = {name: replica(name) for name in NAMES}
    waiting: dict[tuple[str, str], list[Logged]] = {pair: [] for pair in permutations(NAMES, 2)}
    unsettled: list[tuple[str, str, int]] = []
    now = used = 0

    def publish(name: str) -> None:
        logged = replicas[name].flush(now)
        if logged is not None:
            for other in NAMES.replace(name, ""):
                waiting[name, other].append(logged)

    def fetch(source: str, target: str) -> None:
        publish(source)
        take_over(replicas[target], replicas[source], now)

    def enough(name: str) -> bool:
        return LIMIT - replicas[name].ledger.report("acme", "fast", now).tokens.remaining >= used

    for number, (action, who, whom, tokens, gap) in enumerate(events):
        now += gap
        name, other = NAMES[who], NAMES[whom]
        if action == "reserve":
            ask = Ask("acme", "fast", f"r{number}", tokens, holder="gateway-0")
            replicas[name].ledger.reserve(ask, lease_ns=(5 if tokens % 2 else 600) * SECOND, now=now)
            unsettled.append((name, ask.request_id, tokens))
            used += tokens
        elif action == "settle" and unsettled:
            opener, request_id, held = unsettled.pop(0)
            if replicas[opener].ledger.holds("acme", request_id):
                replicas[opener].ledger.settle("acme", "fast", request_id, held, now)
        elif action == "gone":
            replicas[name].ledger.end_held_by("gateway-0", now)
        elif name != other:
            publish(name)
            if action == "fetch":
                fetch(name, other)
            else:
                queue, waiting[name, other] = waiting[name, other], []
                for logged in queue if action == "tell" else ():
                    if not replicas[other].follow(logged, now):
                        fetch(name, other)
    for _ in range(3):
        for source, target in waiting:
            fetch(source, target)
    assert all(enough(name) for name in NAMES)
