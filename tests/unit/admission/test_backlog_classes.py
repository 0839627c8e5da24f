"""Classes in the backlog: order, the reserved share, shedding, and the plain queue to compare with."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.backlog import Backlog
from services.admission.policy.fair_queue import Item
from services.admission.policy.model import QUEUED_CLASSES, QueueClass, Request
from tests.support.admission_limits import all_ttls, steady

_numbers = itertools.count()
PAID, FREE, OVER, BATCH = QUEUED_CLASSES


def push(
    backlog: Backlog, queue_class: QueueClass, cost: float = 10.0, tenant: str = "t", resumed: int = 0
) -> tuple[Item, Item | None]:
    number = next(_numbers)
    request = Request(f"r{number}", tenant, "m@1", 10, 1, 1, 1e9, queue_class, resumed_tokens=resumed)
    return backlog.push(request, 0.0, cost=cost)


def serve(backlog: Backlog) -> Item:
    item = next(backlog.in_order())
    backlog.dispatch(item)
    return item


@given(
    classes=st.sets(st.sampled_from(QUEUED_CLASSES), min_size=2),
    share=st.sampled_from([0.02, 0.05, 0.2]),
    costs=st.lists(st.floats(1, 100), min_size=1, max_size=8),
    rounds=st.integers(1, 400),
)
def test_no_class_starves_and_higher_ones_lose_at_most_the_share(
    classes: set[QueueClass], share: float, costs: list[float], rounds: int
) -> None:
    """All classes always have requests waiting, of the same costs in turn."""
    backlog = Backlog(steady(reserved_share=share, max_per_class=10**9, max_queued=10**9, max_per_tenant=10**9))
    turns = {queue_class: itertools.cycle(costs) for queue_class in classes}
    for queue_class in [*classes, *classes]:  # two each: no class is empty between a grant and the next request
        push(backlog, queue_class, next(turns[queue_class]))
    got = dict.fromkeys(classes, 0.0)
    for _ in range(rounds):
        item = serve(backlog)
        queue_class = item.request.queue_class
        got[queue_class] += item.cost
        push(backlog, queue_class, next(turns[queue_class]))
    first, *lower = sorted(classes)
    largest = max(costs)
    for queue_class in lower:
        earned = share * got[first] / len(lower)
        assert got[queue_class] >= earned - 2 * largest
        assert got[queue_class] <= earned + 1e-6


def test_a_class_that_leaves_takes_no_credit_with_it() -> None:
    backlog = Backlog(steady(reserved_share=0.5))
    for _ in range(10):
        push(backlog, PAID)
    batch, _ = push(backlog, BATCH, cost=100.0)
    for _ in range(5):
        assert serve(backlog).request.queue_class is PAID
    backlog.remove(batch.request.request_id)
    push(backlog, BATCH, cost=20.0)
    assert serve(backlog).request.queue_class is PAID


def test_what_a_resumed_request_computes_again_counts_in_its_class_share() -> None:
    """Else a class would pay little for much: interrupted, it would be back at once, to be interrupted again."""
    backlog = Backlog(steady(reserved_share=0.5))
    for _ in range(10):
        push(backlog, PAID)
    push(backlog, BATCH, cost=1.0, resumed=5)  # and 10 tokens of prompt
    assert [serve(backlog).request.queue_class for _ in range(5)] == [PAID, PAID, PAID, BATCH, PAID]


def test_shedding_goes_from_batch_to_paid_and_takes_resumed_requests_last() -> None:
    backlog = Backlog(steady(max_queued=6))
    push(backlog, PAID)
    push(backlog, FREE)
    push(backlog, OVER)
    kept, _ = push(backlog, BATCH, tenant="long", resumed=5)
    push(backlog, BATCH, tenant="long", resumed=5)
    push(backlog, BATCH, tenant="short")
    shed = []
    for _ in range(6):
        _, gone = push(backlog, PAID)
        assert gone is not None
        shed.append(gone)
    assert [each.request.queue_class for each in shed] == [BATCH, BATCH, BATCH, OVER, FREE, PAID]
    assert shed[0].request.tenant == "short"  # though "long" waits with more
    assert shed[2] is kept


def test_resumed_requests_always_have_room_and_wait_as_long_as_their_deadline() -> None:
    backlog = Backlog(steady(max_per_tenant=1))
    first, _ = push(backlog, FREE)
    assert backlog.room_for(first.request) == "queue_per_tenant"
    resumed, _ = push(backlog, FREE, resumed=3)
    assert backlog.room_for(resumed.request) == ""
    assert (first.limit, resumed.limit) == ("queue", "deadline")
    assert resumed.expires_at > first.expires_at


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=60))
def test_what_expires_leaves_in_time_and_nothing_else_does(steps: list[tuple[float, bool]]) -> None:
    backlog = Backlog(steady(**all_ttls(1e6)))
    waiting: dict[str, float] = {}
    for number, (at, removes) in enumerate(steps):
        if removes and waiting:
            gone = waiting.popitem()[0]
            assert backlog.remove(gone) is not None
        request = Request(f"e{number}", "t", "m@1", 1, 1, 1, 1e9, FREE)
        backlog.push(request, 0.0, cost=1.0, leave_by=at)
        waiting[request.request_id] = at
    for now in (10.0, 20.0, 30.0, 50.0):
        gone_now = {item.request.request_id for item in backlog.expired(now)}
        assert gone_now == {name for name, at in waiting.items() if at <= now}
        for name in gone_now:
            del waiting[name]
    assert len(backlog) == 0


def test_the_plain_discipline_knows_arrival_one_bound_and_deadlines_only() -> None:
    backlog = Backlog(steady(discipline="fifo", max_queued=3, max_per_tenant=1))
    pushed = [push(backlog, queue_class, tenant="one")[0] for queue_class in (BATCH, PAID, FREE)]
    assert backlog.room_for(pushed[0].request) == "queue"
    assert {item.limit for item in pushed} == {"deadline"}
    assert [serve(backlog) for _ in pushed] == pushed
    assert backlog.room_for(pushed[0].request) == ""


@pytest.mark.parametrize("queue_class", QUEUED_CLASSES)
def test_every_class_has_a_queue_of_its_own(queue_class: QueueClass) -> None:
    backlog = Backlog(steady())
    item, _ = push(backlog, queue_class)
    assert len(backlog.queues[queue_class]) == 1
    assert [len(queue) for queue in backlog.higher(queue_class)] == [0] * (queue_class - 1)
    assert next(backlog.in_order()) is item
