"""What runs together, when, and who is told that it is too late."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.batching import Batch, Batcher, CostModel, Item, Late, Limits

ALPHA, BETA = 0.004, 0.00025


def batcher(**limits: float) -> Batcher:
    return Batcher(CostModel(ALPHA, BETA), Limits(**({"slots": 1, "max_rows": 8} | limits)))  # type: ignore[arg-type]


def item(
    tenant: str = "a", rows: int = 1, deadline: float = 1.0, key: str = "k", rank: int = 0, weight: float = 1.0
) -> Item:
    return Item(tenant, key, rows, deadline, None, rank=rank, weight=weight)


def taken(found: Batch | None) -> Batch:
    assert found is not None
    return found


def test_the_first_of_an_idle_executor_does_not_wait() -> None:
    b = batcher()
    first = item()
    b.offer(first, 0.0)
    assert taken(b.take(0.0)).items == [first]


def test_what_waits_for_an_executor_runs_together_and_a_class_never_behind_a_later_one() -> None:
    b = batcher()
    b.offer(item(), 0.0)
    running = taken(b.take(0.0))
    bulk = [item(rank=3) for _ in range(3)]
    paid = [item() for _ in range(3)]
    for one in bulk + paid:
        b.offer(one, 0.001)
    assert b.take(0.001) is None
    b.finished(running, 0.005)
    together = taken(b.take(0.005))
    assert together.items == paid
    b.finished(together, 0.01)
    assert taken(b.take(0.01)).items == bulk


def test_shapes_do_not_share_a_batch_and_the_more_urgent_one_goes_first() -> None:
    b = batcher()
    b.offer(item(), 0.0)
    running = taken(b.take(0.0))
    later, sooner = item(key="long", deadline=2.0), item(tenant="b", key="short", deadline=0.1)
    b.offer(later, 0.001)
    b.offer(sooner, 0.001)
    b.finished(running, 0.005)
    running = taken(b.take(0.005))
    assert running.items == [sooner]
    b.finished(running, 0.01)
    assert taken(b.take(0.01)).items == [later]


def test_an_item_larger_than_a_batch_runs_by_itself() -> None:
    b = batcher(max_rows=4)
    large, small = item(rows=9), item()
    b.offer(large, 0.0)
    b.offer(small, 0.0)
    running = taken(b.take(0.0))
    assert running.items == [large]
    b.finished(running, 0.01)
    assert taken(b.take(0.01)).items == [small]


def test_who_cannot_be_in_time_is_refused_on_arrival_and_told_when_to_come_again() -> None:
    b = batcher()
    for _ in range(64):
        b.offer(item(deadline=10.0), 0.0)
    with pytest.raises(Late) as late:
        b.offer(item(deadline=0.02, tenant="a"), 0.0)
    assert not late.value.full
    assert late.value.retry_after is not None
    assert 0 < late.value.retry_after < 1
    b.offer(item(deadline=0.05, tenant="b"), 0.0)  # who has used nothing has nobody of the other's before it but one


def test_the_queue_is_bounded_in_rows() -> None:
    b = batcher(queue_rows=10)
    b.offer(item(rows=10, deadline=9), 0.0)
    with pytest.raises(Late) as late:
        b.offer(item(deadline=9), 0.0)
    assert late.value.full


def test_in_a_full_queue_the_last_class_makes_room_and_then_who_has_most() -> None:
    b = batcher(queue_rows=8)
    bulk = [item("bulk", rows=2, deadline=9, rank=10) for _ in range(2)]
    flood = [item("flood", rows=2, deadline=9) for _ in range(2)]
    for n, one in enumerate(bulk + flood):
        assert b.offer(one, n / 1000) == []
    assert b.offer(item(rows=1, deadline=9), 0.01) == [bulk[1]]
    assert b.offer(item(rows=2, deadline=9), 0.01) == [bulk[0]]
    assert b.offer(item(rows=1, deadline=9), 0.01) == []
    for other in (item("flood", deadline=9), item("bulk", deadline=9, rank=10), item(deadline=9)):
        with pytest.raises(Late) as late:  # each of them has its share, or is of a later class
            b.offer(other, 0.01)
        assert late.value.full
    assert b.offer(item("b", rows=2, deadline=9), 0.01) == [flood[1]]
    assert [one.queued for one in flood] == [True, False]
    assert b.rows == 8


def test_who_could_not_be_in_time_takes_nobodys_place() -> None:
    b = batcher(queue_rows=8)
    b.offer(item("flood", rows=8, deadline=9), 0.0)
    with pytest.raises(Late) as late:
        b.offer(item(deadline=0.001), 0.0)
    assert not late.value.full
    assert b.rows == 8


def test_a_deadline_that_ends_behind_a_long_execution_is_told_in_time_and_never_executed() -> None:
    b = batcher(way_back=0.001)
    b.offer(item(), 0.0)
    running = taken(b.take(0.0))
    waits = item(deadline=0.05, tenant="b")
    b.offer(waits, 0.001)
    assert b.next_expiry() == pytest.approx(0.049)
    assert b.expired(0.048) == []
    assert b.expired(0.049) == [waits]
    b.finished(running, 2.0)
    assert b.take(2.0) is None
    assert b.next_expiry() == math.inf


def test_a_poison_row_in_a_full_batch_fails_alone() -> None:
    b = batcher()
    members = [item() for _ in range(8)]
    for one in members:
        b.offer(one, 0.0)
    failed, served, now = [], [], 0.0
    while (batch := b.take(now)) is not None:
        now += 0.001
        if members[5] in batch.items:
            failed += b.failed(batch)
        else:
            served += batch.items
            b.finished(batch, now)
    assert failed == [members[5]]
    assert sorted(map(id, served)) == sorted(id(one) for one in members if one is not members[5])


def test_a_crash_gives_each_of_its_members_one_more_chance_alone() -> None:
    b = batcher(slots=2)
    members = [item() for _ in range(3)]
    for one in members:
        b.offer(one, 0.0)
    assert b.crashed(taken(b.take(0.0))) == []
    again = [taken(b.take(0.01)), taken(b.take(0.01))]
    assert [one.items for one in again] == [[members[0]], [members[1]]]
    assert b.crashed(again[0]) == [members[0]]
    b.finished(again[1], 0.02)
    assert taken(b.take(0.02)).items == [members[2]]


def test_what_is_tried_again_after_its_deadline_is_not_executed() -> None:
    b = batcher()
    one, other = item(deadline=0.01), item(deadline=9)
    b.offer(one, 0.0)
    b.offer(other, 0.0)
    assert b.crashed(taken(b.take(0.0))) == []
    assert taken(b.take(0.02)).items == [other]
    assert b.expired(0.02) == [one]


def test_who_leaves_frees_the_queue_even_by_the_hundred_thousand() -> None:
    b = batcher()
    b.offer(item(), 0.0)
    b.take(0.0)
    for n in range(20_000):
        one = item(tenant=f"t{n % 50}", deadline=1e6)
        b.offer(one, 0.0)
        b.cancel(one)
        b.cancel(one)
    assert b.rows == 0
    (queue,) = (queue for _, _, queue in b._queues())
    assert len(queue._deadlines) < 300
    assert sum(map(len, queue._lines.values())) < 300


def test_many_shapes_leave_no_queues_behind() -> None:
    b = batcher()
    for n in range(1000):
        one = item(key=f"shape-{n}", deadline=1e6)
        b.offer(one, 0.0)
        b.cancel(one)
    assert len(list(b._queues())) <= 65


def test_an_estimate_that_is_far_too_high_is_found_out() -> None:
    b = Batcher(CostModel(10.0, 0.0), Limits())  # it takes a millisecond in truth
    for n in range(400):
        b.offer(item(deadline=n + 0.05), n)
        b.finished(taken(b.take(n)), n + 0.001)
    assert b.cost.tail(1) < 0.01


def test_waiting_pays_only_under_load_and_never_longer_than_its_bound() -> None:
    b = batcher(slots=1, max_rows=32, longest_wait=0.005)
    for n in range(200):  # 150 rows a second: an executor is busy for 64% of the time without any batch
        b.offer(item(deadline=n / 150 + 1), n / 150)
        b.finished(taken(b.take(n / 150)), n / 150 + 0.00425)
    now, busy, sizes, waited = 200 / 150, 0.0, [], []
    for _ in range(400):  # 600 a second: alone they would take 2.5 executors
        b.offer(item(deadline=now + 1), now)
        then = now + 1 / 600
        while (at := max(busy, min(now, b.wake_at))) < then and (batch := b.take(at)) is not None:
            busy = at + ALPHA + BETA * batch.rows
            sizes.append(batch.rows)
            waited += [at - one.arrived for one in batch.items]
            b.finished(batch, busy)
        now = then
    assert sum(sizes) / len(sizes) > 2
    assert max(waited) < 0.005 + 2 * (ALPHA + 32 * BETA)


def test_tenants_get_rows_by_weight_and_a_flood_takes_no_more() -> None:
    b = batcher(queue_rows=100_000)
    for _ in range(3000):
        b.offer(item("flood", deadline=1e6), 0.0)
    for _ in range(300):
        b.offer(item("one", deadline=1e6), 0.0)
        b.offer(item("two", deadline=1e6, weight=2.0), 0.0)
    served: dict[str, int] = {"flood": 0, "one": 0, "two": 0}
    for n in range(50):
        batch = taken(b.take(float(n)))
        for one in batch.items:
            served[one.tenant] += 1
        b.finished(batch, n + ALPHA)
    assert served["flood"] == pytest.approx(100, abs=3)
    assert served["one"] == pytest.approx(100, abs=3)
    assert served["two"] == pytest.approx(200, abs=3)


def test_near_deadlines_do_not_buy_a_tenant_more_than_a_bounded_lead() -> None:
    b = batcher(queue_rows=100_000)
    for n in range(1000):
        b.offer(item("patient", deadline=1e6, key="a"), 0.0)
        b.offer(item("pushing", deadline=1e3 + n, key="b"), 0.0)
    served = {"patient": 0, "pushing": 0}
    for n in range(100):
        batch = taken(b.take(n / 100))
        served[batch.items[0].tenant] += batch.rows
        b.finished(batch, n / 100 + ALPHA)
    assert served["patient"] == pytest.approx(served["pushing"], abs=8 * 6)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 16))
def test_everyone_gets_one_answer_nothing_expired_runs_and_no_batch_is_mixed(
    seed: int, slots: int, max_rows: int
) -> None:
    chance = random.Random(seed)
    b = batcher(slots=slots, max_rows=max_rows, queue_rows=60)
    outcome: dict[int, str] = {}
    items: list[Item] = []
    running: list[tuple[float, Batch]] = []
    now, refused = 0.0, 0

    def ends(one: Item, what: str) -> None:
        assert id(one) not in outcome
        outcome[id(one)] = what

    def go_on(until: float) -> None:
        nonlocal now
        for end, batch in sorted((pair for pair in running if pair[0] <= until), key=lambda pair: pair[0]):
            running.remove((end, batch))
            now = max(now, end)
            kind = chance.random()
            if kind < 0.1:
                for one in b.failed(batch):
                    ends(one, "failed")
            elif kind < 0.2:
                for one in b.crashed(batch):
                    ends(one, "crashed")
            else:
                b.finished(batch, now)
                for one in batch.items:
                    ends(one, "served")
        now = max(now, until)
        for one in b.expired(now):
            ends(one, "expired")
        while (batch := b.take(now)) is not None:
            assert batch.rows <= max_rows or len(batch.items) == 1
            assert len({(one.key, one.rank) for one in batch.items}) == 1
            assert all(one.deadline > now for one in batch.items)
            running.append((now + (ALPHA + BETA * batch.rows) * chance.uniform(0.5, 3), batch))
        assert b.running == len(running) <= slots

    for _ in range(60):
        one = item(
            chance.choice("abc"),
            chance.randint(1, 5),
            now + chance.uniform(0, 0.1),
            chance.choice("kl"),
            chance.randint(0, 2),
        )
        try:
            evicted = b.offer(one, now)
            items.append(one)
            for other in evicted:
                ends(other, "evicted")
        except Late:
            refused += 1
        if items and chance.random() < 0.1 and (left := chance.choice(items)).queued:
            b.cancel(left)
            ends(left, "left")
        go_on(now + chance.expovariate(300))
    for _ in range(1000):
        if len(outcome) == len(items):
            break
        go_on(now + 0.01)
    assert len(outcome) == len(items) == 60 - refused
    assert b.rows == b.running == 0


OFFERS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.integers(1, 9)), max_size=60)


@given(OFFERS, st.integers(1, 40), st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=4, max_size=4))
def test_within_its_share_of_what_earlier_classes_leave_nobody_is_refused_a_place(
    offers: list[tuple[str, int, int]], places: int, weights: list[float]
) -> None:
    b, weight = batcher(queue_rows=places), dict(zip("abcd", weights, strict=True))
    waiting: list[Item] = []

    def waits(rank: int, tenant: str) -> int:
        return sum(one.rows for one in waiting if (one.rank, one.tenant) == (rank, tenant))

    for n, (tenant, rank, rows) in enumerate(offers):
        one = item(tenant, rows, 1e9, "kl"[n % 2], rank, weight[tenant])
        level = (waits(rank, tenant) + rows) / weight[tenant]
        earlier = sum(other.rows for other in waiting if other.rank < rank)
        rivals = {other.tenant for other in waiting if other.rank == rank} | {tenant}
        try:
            evicted = b.offer(one, n)
        except Late:  # deadlines are far
            assert level * sum(map(weight.__getitem__, rivals)) > places - earlier
            continue
        for other in evicted:
            assert other.rank > rank or (
                other.rank == rank and waits(rank, other.tenant) / weight[other.tenant] > level
            )
        waiting = [other for other in [*waiting, one] if other not in evicted]
        assert b.rows == sum(other.rows for other in waiting) <= max(places, rows)
        assert all(other.queued for other in waiting)
