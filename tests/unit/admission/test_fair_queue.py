"""Weighted fair queuing: bounded gap, no banked credit, order, bookkeeping."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.estimates import ServiceRate, cost_ahead
from services.admission.policy.fair_queue import FairQueue, Item, Lane
from services.admission.policy.model import Request
from simulation.fairness import Grant, ServiceGaps

_numbers = itertools.count()


def item(tenant: str, cost: float, weight: float = 1.0, version: str = "m@1") -> Item:
    number = next(_numbers)
    request = Request(f"r{number}", tenant, version, 1, 1, 1, deadline=1e9, weight=weight)
    return Item(request=request, cost=cost, order=number, queued_at=0.0, expires_at=1e9)


def everything(_: Lane) -> bool:
    return True


def head_of(queue: FairQueue, tenant: str) -> Item:
    flow = queue.flow(tenant)
    assert flow is not None
    return flow.heads()[0]


def serve(queue: FairQueue) -> Item:
    return queue.dispatch(next(queue.in_order()).heads()[0].request.request_id)


costs = st.floats(1, 1000)
weights = st.sampled_from([0.5, 1.0, 2.0, 4.0])


@given(
    flows=st.lists(st.tuples(weights, st.lists(costs, min_size=1, max_size=20)), min_size=2, max_size=5),
    rounds=st.integers(1, 60),
)
def test_service_of_backlogged_tenants_differs_by_at_most_one_request_each(
    flows: list[tuple[float, list[float]]], rounds: int
) -> None:
    queue = FairQueue()
    for number, (weight, flow_costs) in enumerate(flows):
        for cost in flow_costs:
            queue.push(item(f"t{number}", cost, weight))
    served = dict.fromkeys(range(len(flows)), 0.0)
    largest = {number: max(flow_costs) / weight for number, (weight, flow_costs) in enumerate(flows)}
    for _ in range(rounds):
        if any(queue.size_of(f"t{number}") == 0 for number in served):
            break
        done = serve(queue)
        number = int(done.request.tenant[1:])
        served[number] += done.cost / done.request.weight
        for f, g in itertools.combinations(served, 2):
            assert abs(served[f] - served[g]) <= largest[f] + largest[g] + 1e-6


class Served:
    """What each tenant was granted, in real cost over weight, and what of that is charged otherwise so far."""

    def __init__(self) -> None:
        self.real = {"f": 0.0, "g": 0.0}
        self.uncorrected = {"f": 0.0, "g": 0.0}
        self.largest = 0.0
        self.widest = 0.0

    def note(self) -> None:
        self.widest = max(self.widest, abs(self.uncorrected["f"] - self.uncorrected["g"]))


@given(
    weights_of=st.tuples(weights, weights),
    requests=st.lists(st.tuples(st.sampled_from("fg"), costs, costs), min_size=4, max_size=60),
    running=st.integers(1, 6),
    keys=st.lists(st.integers(0, 5), min_size=60, max_size=60),
)
def test_real_service_differs_by_the_bound_although_only_expectations_are_charged_at_first(
    weights_of: tuple[float, float], requests: list[tuple[str, float, float]], running: int, keys: list[int]
) -> None:
    """The module's bound, over every stretch of time: 2 U + 2 E."""
    queue = FairQueue()
    weight = dict(zip("fg", weights_of, strict=True))
    real: dict[str, float] = {}
    for tenant, expected, actual in requests:
        new = item(tenant, expected, weight[tenant])
        real[new.request.request_id] = actual
        queue.push(new)
    served, open_items = Served(), list[Item]()
    served.largest = max(actual / weight[tenant] for tenant, _, actual in requests)
    gaps = [0.0]
    for key in keys:
        if not (queue.size_of("f") and queue.size_of("g")):
            break
        if len(open_items) == running:  # one of those that run ends and is corrected
            ended = open_items.pop(key % running)
            tenant = ended.request.tenant
            error = real[ended.request.request_id] - ended.cost
            queue.correct(tenant, weight[tenant], error)
            served.uncorrected[tenant] -= error / weight[tenant]
            served.note()
        granted = serve(queue)
        tenant = granted.request.tenant
        served.real[tenant] += real[granted.request.request_id] / weight[tenant]
        served.uncorrected[tenant] += (real[granted.request.request_id] - granted.cost) / weight[tenant]
        served.note()
        open_items.append(granted)
        gaps.append(served.real["f"] - served.real["g"])
    # The difference over a stretch is the difference of the gaps at its ends.
    assert max(gaps) - min(gaps) <= 2 * served.largest + 2 * served.widest + 1e-6


class Watched:
    """A queue of three tenants who come, go, are overtaken and come to cost something else; what each was granted."""

    def __init__(self, weights_of: tuple[float, ...]) -> None:
        self.queue = FairQueue(burst_seconds=3.0)
        self.gaps = ServiceGaps()
        self.weight = dict(zip("fgh", weights_of, strict=True))
        self.waiting: dict[str, float] = {}
        self.running: list[tuple[Item, Grant]] = []

    def push(self, tenant: str, expected: float, actual: float) -> None:
        """A request comes, that will cost something else than is thought."""
        new = item(tenant, expected, self.weight[tenant])
        self.waiting[new.request.request_id] = actual
        self.queue.push(new)
        self.gaps.queued(tenant, self.queue.flow(tenant).burst)  # type: ignore[union-attr]

    def serve(self, overtaking: int) -> None:
        """The next in order is granted, or one that comes later."""
        flows = list(self.queue.in_order())
        before = flows[: overtaking % len(flows)]
        head = flows[len(before)].heads()[0]
        self.queue.dispatch(head.request.request_id)
        tenant, weight = head.request.tenant, head.request.weight
        actual = self.waiting.pop(head.request.request_id)
        grant = Grant(tenant, actual / weight, head.cost / weight, tuple(flow.tenant for flow in before))
        self.running.append((head, self.gaps.granted(grant)))
        self.gaps.left(tenant)

    def end(self, number: int) -> None:
        """One of those that run ends, and the queue hears what it cost."""
        head, grant = self.running.pop(number % len(self.running))
        tenant, weight = head.request.tenant, head.request.weight
        actual = grant.real
        self.queue.correct(tenant, weight, actual * weight - head.cost)
        self.gaps.ended(grant, actual)


@given(
    weights_of=st.tuples(weights, weights, weights),
    steps=st.lists(
        st.tuples(st.sampled_from("ppppsssssset"), st.sampled_from("fgh"), costs, costs, st.integers(0, 11)),
        min_size=20,
        max_size=120,
    ),
    exact=st.booleans(),
    in_order=st.booleans(),
)
def test_g12_service_differs_by_the_bound_with_bursts_errors_and_overtaking(
    weights_of: tuple[float, ...], steps: list[tuple[str, str, float, float, int]], exact: bool, in_order: bool
) -> None:
    """The module's bound, 2 U + 2 E + B + O, over every stretch of time in which two tenants wait."""
    watched, now = Watched(weights_of), 0.0
    for what, tenant, expected, actual, number in steps:
        if what == "p":
            for _ in range(1 + number // 4):
                watched.push(tenant, expected, expected if exact else actual)
        elif what == "s" and len(watched.queue):
            watched.serve(0 if in_order else max(0, number - 9))
        elif what == "e" and watched.running:
            watched.end(number)
        elif what == "t":
            now += number / 4
        watched.queue.tick(now)
    for gap in watched.gaps.gaps().values():
        assert gap.gap <= gap.bound + 1e-6


def test_a_newcomer_starts_where_service_is_now_even_after_refunds() -> None:
    queue = FairQueue()
    for _ in range(8):
        queue.push(item("a", 100))
    for _ in range(4):
        serve(queue)
    queue.correct("a", 1.0, -360)  # all four were short
    queue.push(item("new", 100))
    # The newcomer is owed nothing and owes nothing but what was still charged when it came.
    assert [serve(queue).request.tenant for _ in range(4)].count("new") == 1


def test_a_tenant_passed_over_for_its_own_budget_is_owed_nothing() -> None:
    queue = FairQueue()
    for _ in range(10):
        queue.push(item("full", 10))
        queue.push(item("free", 10))
    queue.park(head_of(queue, "full"))
    for _ in range(6):
        (head,) = queue.heads(everything)
        assert head.request.tenant == "free"
        queue.dispatch(head.request.request_id)
    queue.unpark("full")
    # It was as far as the other before the last of these; all four would be its own if it were owed what it missed.
    assert [serve(queue).request.tenant for _ in range(4)].count("full") == 3


def test_how_much_one_version_serves_does_not_set_back_those_who_come_for_another() -> None:
    """A full canary beside a version that serves fifty times as much; who asks one by one gets what a flood gets."""
    queue = FairQueue()
    served: list[str] = []
    for _ in range(60):
        for _ in range(50):
            queue.push(item("stable", 100))
            queue.dispatch(next(queue.heads(lambda lane: lane[1] == "m@1")).request.request_id)
        while queue.size_of("flood") < 3:
            queue.push(item("flood", 100, version="m@2"))
        if not queue.size_of("one by one"):
            queue.push(item("one by one", 100, version="m@2"))
        head = next(queue.heads(lambda lane: lane[1] == "m@2"))
        served.append(queue.dispatch(head.request.request_id).request.tenant)
    assert abs(served.count("flood") - served.count("one by one")) <= 2


def test_what_is_parked_is_looked_at_again_when_its_head_leaves_and_still_waits_for_everybody_else() -> None:
    queue = FairQueue()
    first, second, other = item("full", 10), item("full", 20), item("full", 5, version="m@2")
    for each in (first, second, other):
        queue.push(each)
    queue.park(first)
    queue.park(first)
    assert list(queue.heads(everything)) == [other]  # the budget may leave room for another version's
    assert queue.backlog == 35
    assert queue.served_until(0.0, besides=None) > 0.0
    queue.remove(first.request.request_id)
    assert list(queue.heads(everything)) == [second, other]


def test_resumed_requests_go_before_their_tenants_others_and_are_shed_last() -> None:
    queue = FairQueue()
    first, resumed = item("a", 10), item("a", 10)
    resumed.request = replace(resumed.request, resumed_tokens=5, prompt_tokens=9)
    queue.push(first)
    queue.push(resumed)
    flow = next(queue.in_order())
    assert flow.heads() == [resumed, first]
    assert flow.newest() is first
    assert not flow.all_resumed
    queue.dispatch(first.request.request_id)
    assert flow.newest() is resumed
    assert flow.all_resumed


def test_without_tenants_it_is_a_plain_queue() -> None:
    queue = FairQueue(by_tenant=False)
    items = [item(tenant, cost) for tenant, cost in (("a", 500), ("a", 1), ("b", 1), ("c", 1))]
    for each in items:
        queue.push(each)
    assert [serve(queue) for _ in items] == items


@given(st.lists(st.tuples(st.sampled_from("abc"), costs, st.booleans()), max_size=80))
def test_every_request_leaves_once_and_the_books_balance(steps: list[tuple[str, float, bool]]) -> None:
    queue = FairQueue()
    waiting: dict[str, Item] = {}
    left: set[str] = set()
    for tenant, cost, removes in steps:
        if removes and waiting:
            victim = waiting.pop(next(iter(waiting)))
            assert queue.remove(victim.request.request_id) is victim
            assert queue.remove(victim.request.request_id) is None
            left.add(victim.request.request_id)
        else:
            new = item(tenant, cost)
            queue.push(new)
            waiting[new.request.request_id] = new
        assert len(queue) == len(waiting)
        assert queue.backlog == pytest.approx(sum(i.cost for i in waiting.values()))
    while len(queue):
        served = serve(queue)
        assert served.request.request_id not in left
        left.add(served.request.request_id)
        del waiting[served.request.request_id]
    assert not waiting
    assert queue.backlog == 0.0


def test_a_tenants_requests_keep_their_order_per_version() -> None:
    queue = FairQueue()
    first, second, third = item("a", 1), item("a", 1, version="m@2"), item("a", 1)
    for each in (first, second, third):
        queue.push(each)
    assert next(queue.in_order()).heads() == [first, second]
    queue.dispatch(first.request.request_id)
    assert next(queue.in_order()).heads() == [second, third]
    assert next(queue.in_order()).newest() is third


def test_idleness_is_not_credit() -> None:
    queue = FairQueue()
    for _ in range(20):
        queue.push(item("busy", 10))
    for _ in range(10):
        serve(queue)
    for _ in range(10):
        queue.push(item("late", 10))
    assert {serve(queue).request.tenant for _ in range(2)} == {"busy", "late"}
    order = [serve(queue).request.tenant for _ in range(8)]
    assert order.count("late") == 4


def test_who_comes_back_goes_first_with_what_it_would_have_got_lately_and_no_more() -> None:
    queue = FairQueue(burst_seconds=3.0)
    for _ in range(60):
        queue.push(item("flooder", 10))
    for second in range(10):  # 20 a second
        queue.tick(second)
        serve(queue), serve(queue)
    before = queue.level_of("newcomer")
    for _ in range(20):
        queue.push(item("late", 10))
    assert [serve(queue).request.tenant for _ in range(9)] == ["late"] * 9  # seconds 6 to 9, and one more
    assert queue.level_of("newcomer") >= before  # nor does it take others back with it
    order = [serve(queue).request.tenant for _ in range(6)]
    assert order.count("late") == 3


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.lists(costs, max_size=4), st.floats(0, 2)), min_size=1, max_size=40),
    weight=weights,
)
def test_coming_and_going_gains_one_burst_and_no_more(
    steps: list[tuple[int, list[float], float]], weight: float
) -> None:
    """Over any time: what those who never left got in it and in the time of a burst before, and a request of each."""
    burst, now = 3.0, 0.0
    queue = FairQueue(burst_seconds=burst)
    served: list[tuple[float, str, float]] = []
    for serves, asked, passed in steps:
        queue.tick(now)
        for cost in asked:
            queue.push(item("guest", cost, weight))
        for _ in range(serves):
            while (flow := queue.flow("resident")) is None or flow.size < 2:
                queue.push(item("resident", 100.0))
            got = serve(queue)
            served.append((now, got.request.tenant, got.cost / got.request.weight))
        now += passed
    # `tick` samples eight times in the time of a burst, here at most every 2 s.
    reach = burst + burst / 8 + 2.0
    for first, _, _ in served:
        for last, _, _ in served:
            guest = sum(cost for at, who, cost in served if who == "guest" and first <= at <= last)
            resident = sum(cost for at, who, cost in served if who == "resident" and first - reach <= at <= last)
            assert guest <= resident + 2 * max(100.0, 1000.0 / weight)


def test_service_without_waiting_counts_when_waiting_begins() -> None:
    queue = FairQueue()
    for _ in range(5):
        queue.charge("greedy", 1.0, 100)
    queue.charge("modest", 1.0, 1)
    for tenant in ("greedy", "modest"):
        for _ in range(3):
            queue.push(item(tenant, 50))
    assert serve(queue).request.tenant == "modest"


def test_a_refund_moves_a_waiting_tenant_forward_but_gives_an_idle_one_no_credit() -> None:
    queue = FairQueue()
    for _ in range(3):
        queue.push(item("a", 100))
        queue.push(item("b", 100))
    assert [serve(queue).request.tenant for _ in range(2)] == ["a", "b"]
    queue.correct("b", 1.0, -90)
    assert serve(queue).request.tenant == "b"

    idle = FairQueue()
    idle.charge("a", 1.0, 100)
    idle.correct("a", 1.0, -1_000)
    idle.push(item("b", 10))
    idle.push(item("a", 10))
    assert serve(idle).request.tenant == "b"


def test_weights_share_service_in_proportion() -> None:
    queue = FairQueue()
    for _ in range(60):
        queue.push(item("heavy", 10, weight=3.0))
        queue.push(item("light", 10, weight=1.0))
    served = [serve(queue).request.tenant for _ in range(60)]
    assert abs(served.count("heavy") - 45) <= 1


def test_memory_of_idle_tenants_is_bounded() -> None:
    queue = FairQueue(max_idle=10)
    queue.push(item("waits", 1))
    for number in range(100):
        queue.charge(f"t{number}", 1.0, 10)
    assert len(queue._idle) == 10


def test_an_id_waits_once() -> None:
    queue = FairQueue()
    one = item("a", 1)
    queue.push(one)
    with pytest.raises(ValueError, match="waits already"):
        queue.push(one)


@given(
    own=st.lists(costs, max_size=5),
    others=st.lists(st.tuples(weights, st.lists(costs, min_size=1, max_size=5)), max_size=4),
    served=st.lists(costs, max_size=4),
)
def test_the_cost_ahead_is_an_upper_bound_up_to_one_request_of_each_tenant(
    own: list[float], others: list[tuple[float, list[float]]], served: list[float]
) -> None:
    queue = FairQueue()
    for each in served:  # of late: what it has had counts
        queue.charge("me", 1.0, each)
    for number, (weight, flow_costs) in enumerate(others):
        for each in flow_costs:
            queue.push(item(f"t{number}", each, weight))
    for each in own:
        queue.push(item("me", each))
    estimate = cost_ahead(queue, "me", 1.0)
    mine = item("me", 1.0)
    queue.push(mine)
    spent = 0.0
    while (next_one := serve(queue)) is not mine:
        spent += next_one.cost
    assert spent <= estimate + sum(max(flow_costs) for _, flow_costs in others) + 1e-6


def test_the_rate_counts_backlogged_time_only() -> None:
    rate = ServiceRate(memory=1e9)
    rate.observe(0.0, backlogged=False)
    rate.observe(100.0, backlogged=True)
    assert rate.per_second() is None
    rate.observe(101.0, backlogged=True, granted=50.0)
    assert rate.per_second() == pytest.approx(50.0)
    rate.observe(102.0, backlogged=False, granted=50.0)
    rate.observe(1000.0, backlogged=True)
    assert rate.per_second() == pytest.approx(50.0)


def test_the_rate_falls_when_nothing_is_granted() -> None:
    rate = ServiceRate()
    rate.observe(0.0, backlogged=True)
    rate.observe(1.0, backlogged=True, granted=100.0)
    before = rate.per_second()
    rate.observe(5.0, backlogged=True)
    after = rate.per_second()
    assert before is not None
    assert after is not None
    assert after < before / 3
