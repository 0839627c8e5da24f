"""What the edge is told to shed: who, how much, and for how long."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.edge_shedding import SLICE, EdgeShedding, FairRate, TenantLevel, _Demand
from services.admission.policy.fading import FadingRate
from services.admission.policy.model import QueueClass, Request

BASE = Request("r", "t", "m@1", 10, 10, 1, 1e9, QueueClass.PAID)


class Load:
    """A pool that serves so much of each tenant's, second by second, while the edge sheds what it is told."""

    def __init__(self) -> None:
        self.shedding = EdgeShedding()
        self.now = 0.0
        self.told: dict[str, float] = {}

    def seconds(self, count: int, load: dict[str, tuple[float, float]], **more: object) -> dict[str, float]:
        """`load` says requests per second and how many of them are served at most, by tenant."""
        for _ in range(count * 10):
            self.now += 0.1
            for tenant, (comes, served) in load.items():
                request = replace(BASE, tenant=tenant, **more)
                passes = comes * (1.0 - self.told.get(tenant, 0.0)) / 10
                gets = min(passes, served / 10)
                # Fractions of requests: the rates are what is under test.
                self.shedding.arrived(request, passes, self.now)
                demand = self.shedding._demands[tenant, request.queue_class]
                demand.came.add(self.now, (passes - 1.0) / (1.0 - self.told.get(tenant, 0.0)))
                self.shedding.granted(request, gets, self.now)
                demand.passed.add(self.now, gets - 1.0)
                if passes > gets + 1e-9:
                    self.shedding.refused(request, passes - gets, 2.0, self.now)
            if round(self.now * 10) % 10 == 0:
                tenants = self.shedding.tenants(self.now)
                self.shedding.told(tenants)
                self.told = {each.tenant: each.shed for each in tenants}
        return self.told


def test_a_flood_is_shed_to_a_little_more_than_it_is_served_and_others_are_not_named() -> None:
    load = Load()
    told = load.seconds(40, {"flood": (100.0, 10.0), "calm": (3.0, 3.0)})
    assert set(told) == {"flood"}
    passes = 100.0 * (1.0 - told["flood"])
    assert 10.0 < passes <= 14.0  # admission always sees a little more than it can serve


def test_a_tenant_within_its_fair_share_is_never_named_though_it_is_refused() -> None:
    told = Load().seconds(30, {"flood": (100.0, 8.0), "calm": (4.0, 2.0)})
    assert set(told) == {"flood"}


def test_shedding_ends_when_the_flood_does() -> None:
    load = Load()
    assert load.seconds(30, {"flood": (50.0, 10.0), "calm": (3.0, 3.0)})
    assert load.seconds(30, {"flood": (8.0, 10.0), "calm": (3.0, 3.0)}) == {}


def test_shedding_ends_within_seconds_of_the_last_refusal() -> None:
    load = Load()
    assert load.seconds(30, {"flood": (50.0, 10.0), "calm": (3.0, 3.0)})["flood"] > 0.7
    assert load.seconds(4, {"flood": (2.0, 10.0), "calm": (3.0, 3.0)}) == {}


def test_hysteresis_names_from_three_tenths_and_until_one() -> None:
    load = Load()
    assert load.seconds(40, {"near": (12.0, 9.3), "calm": (1.0, 1.0)}) == {}  # 1 - 1.1 · 9.3/12 = 0.15
    assert load.seconds(60, {"near": (16.0, 9.3), "calm": (1.0, 1.0)}) != {}
    assert load.seconds(60, {"near": (12.0, 9.3), "calm": (1.0, 1.0)}) != {}


def test_a_tenant_whose_other_class_is_served_is_not_shed_for_the_one_that_is_not() -> None:
    load = Load()
    for _ in range(30):
        load.seconds(1, {"both": (3.0, 3.0), "other": (3.0, 3.0)})
        told = load.seconds(1, {"both": (50.0, 1.0)}, queue_class=QueueClass.OVER_QUOTA)
    assert told == {}


def test_when_the_edge_could_not_be_told_what_comes_is_all_there_is() -> None:
    load = Load()
    told = load.seconds(30, {"flood": (100.0, 10.0), "calm": (3.0, 3.0)})
    load.shedding.told(())
    load.told = {}
    again = load.seconds(30, {"flood": (100.0, 10.0), "calm": (3.0, 3.0)})
    assert again["flood"] == pytest.approx(told["flood"], abs=0.03)


def test_memory_is_bounded_and_what_is_quiet_is_forgotten() -> None:
    shedding = EdgeShedding(max_tracked=10)
    for number in range(100):
        request = replace(BASE, tenant=f"t{number}")
        shedding.arrived(request, 1.0, 0.0)
        shedding.refused(request, 1.0, 1.0, 0.0)
    assert len(shedding._demands) == 10
    shedding.refused(BASE, 1.0, 1.0, 100.0)
    assert shedding.tenants(100.0) == ()
    assert len(shedding._demands) == 0


def test_the_edge_gets_shares_and_times_in_order() -> None:
    load = Load()
    load.seconds(30, {"much": (200.0, 10.0), "some": (50.0, 10.0), "calm": (1.0, 1.0)})
    first, second = load.shedding.tenants(load.now)
    assert (first.tenant, second.tenant) == ("much", "some")
    assert first.shed > second.shed
    assert isinstance(first, TenantLevel)
    assert first.retry_after == pytest.approx(2.0)


@given(
    st.dictionaries(st.text("abcdef", max_size=3), st.tuples(st.floats(0, 1000), st.floats(0.1, 10)), min_size=1),
    st.floats(0, 3000),
)
def test_fair_rates_use_up_the_capacity_and_never_more(asked: dict[str, tuple[float, float]], capacity: float) -> None:
    fair = FairRate()
    asking = []
    for tenant, (want, weight) in asked.items():
        fair.count(weight, capacity / len(asked))
        demand = _Demand(1.0, 0.0)
        demand.weight = weight
        asking.append((want / weight, tenant, want, demand))
    asking.sort()
    fair.found_with(asking[:2])
    if fair.rate == math.inf:
        fair.found_with(asking[2:])
    got = sum(min(want, fair.rate * weight) for want, weight in asked.values())
    wanted = sum(want for want, _ in asked.values())
    assert got == pytest.approx(min(capacity, wanted), rel=1e-6, abs=1e-6)


def test_d7_of_many_tenants_a_few_are_looked_at_at_a_time() -> None:
    """The number of `exp`s that one piece takes bounds the time that it takes."""
    shedding = EdgeShedding()
    tenants = 4 * SLICE + 7
    for number in range(tenants):
        request = replace(BASE, tenant=f"t{number:05}", queue_class=QueueClass(1 + number % 2))
        shedding.arrived(request, 1.0 + number % 17, 0.0)
        shedding.refused(request, 1.0, 2.0, 0.0)
    calls = Counter[int]()
    piece = 0

    class Counting(FadingRate):
        __slots__ = ()

        def per_second(self, now: float) -> float:
            calls[piece] += 1
            return super().per_second(now)

    for demand in shedding._demands.values():
        for name in ("asked", "got", "came", "passed", "refused"):
            getattr(demand, name).__class__ = Counting
    told: tuple[TenantLevel, ...] = ()
    for piece, found in enumerate(shedding.survey(1.0), 1):
        told = found or ()
        shedding.arrived(replace(BASE, tenant=f"new{piece}"), 1.0, 1.0)  # others come meanwhile
    assert len(told) == 100
    assert [each.tenant for each in told] == sorted(each.tenant for each in told)
    assert sum(calls.values()) > 4 * tenants
    assert max(calls.values()) <= 5 * SLICE
