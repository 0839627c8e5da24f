"""Budgets: money per calendar day and month, in any history of requests and clocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.quota import (
    ALL_MODELS,
    Admitted,
    Alert,
    Ask,
    BudgetSpec,
    Denied,
    Ledger,
    LimitKind,
    LimitSpec,
    Record,
    Replica,
    Tally,
)
from libs.quota.dates import Zone
from libs.quota.spent import STORED
from tests.support.quota import leases_of, take_over

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
LEASE = 2 * HOUR
ZONES = ["", "America/St_Johns", "Europe/Berlin", "Pacific/Apia", "Pacific/Kiritimati", "Asia/Kathmandu"]


def at(text: str) -> int:
    """Unix nanoseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


NOON = at("2026-11-23T12:00")


def book(spec: BudgetSpec, wall: int = NOON, life: str = "1") -> Ledger:
    """A ledger at time 0, which is `wall`."""
    ledger = Ledger(part=("a", life), track_changes=True)
    ledger.apply_budgets({"acme": spec})
    ledger.budgets.set_wall(wall, 0)
    return ledger


def reserve(ledger: Ledger, name: str, spend: int, now: int = 0, tenant: str = "acme") -> Admitted | Denied:
    outcome = ledger.reserve(Ask(tenant, "fast", name, spend, spend=spend), lease_ns=LEASE, now=now)
    assert isinstance(outcome, Admitted | Denied)
    return outcome


def spend(ledger: Ledger, name: str, amount: int, now: int = 0) -> None:
    assert isinstance(reserve(ledger, name, amount, now), Admitted)
    ledger.settle("acme", "fast", name, amount, now, spend=amount)


def kept(ledger: Ledger, now: int = 0) -> Record:
    budget = ledger.budgets.of("acme")
    assert budget is not None
    return budget.record(now)


def test_a_day_refuses_until_midnight_in_the_tenants_zone() -> None:
    ledger = book(BudgetSpec(daily_microusd=100, time_zone="Pacific/Kiritimati"), at("2026-11-23T09:00"))
    spend(ledger, "r1", 90)
    refused = reserve(ledger, "r2", 11)
    assert isinstance(refused, Denied)
    assert (refused.kind, refused.kind.value) == (LimitKind.BUDGET_DAY, "budget:day")
    # 14 hours ahead it is 23:00.
    assert refused.retry_after_ns == HOUR
    assert (refused.report.limit, refused.report.remaining, refused.report.period_ns) == (100, 10, 24 * HOUR)
    assert refused.message() == "The budget of 100 micro-dollars for the day is spent: 10 left, 11 needed."
    assert isinstance(reserve(ledger, "r3", 11, HOUR - 1), Denied)
    assert isinstance(reserve(ledger, "r4", 100, HOUR), Admitted)


def test_a_month_outlasts_a_day_and_says_when_it_ends() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100, daily_microusd=60), at("2028-02-28T12:00"))
    spend(ledger, "r1", 60)
    refused = reserve(ledger, "r2", 41)
    assert isinstance(refused, Denied)
    # A leap year: the 29th is still to come.
    assert (refused.kind, refused.retry_after_ns) == (LimitKind.BUDGET_MONTH, 36 * HOUR)
    assert kept(ledger) == Record(Tally("2028-02-28", 60), Tally("2028-02", 60))
    spend(ledger, "r3", 40, 12 * HOUR)
    assert kept(ledger, 12 * HOUR) == Record(Tally("2028-02-29", 40), Tally("2028-02", 100))
    assert isinstance(reserve(ledger, "r4", 60, 36 * HOUR), Admitted)


def test_what_can_never_fit_has_no_time_to_come_back() -> None:
    refused = reserve(book(BudgetSpec(monthly_microusd=100)), "r1", 101)
    assert isinstance(refused, Denied)
    assert refused.retry_after_ns is None
    assert "can never fit the budget of 100 micro-dollars for the month" in refused.message()


def test_open_reservations_count_and_are_no_reason_to_wait_for_the_months_end() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100))
    spend(ledger, "r0", 10)
    reserve(ledger, "r1", 80)
    refused = reserve(ledger, "r2", 20)
    assert isinstance(refused, Denied)
    assert refused.retry_after_ns == SECOND  # what is assumed until a lease has ended
    ledger.settle("acme", "fast", "r1", 5, 0, spend=5)
    admitted = reserve(ledger, "r3", 85)
    assert isinstance(admitted, Admitted)
    assert (admitted.spend.limit, admitted.spend.remaining) == (100, 0)


def test_the_tightest_of_cap_and_budget_is_told() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100, daily_microusd=50))
    ledger.apply_limits({("acme", ALL_MODELS): LimitSpec(spend_microusd=70)}, 0)
    for taken, limit in ((10, 50), (20, 50)):
        spend(ledger, f"r{taken}", taken)
        assert ledger.report("acme", "fast", 0).spend.limit == limit
    assert ledger.report("acme", "fast", 13 * HOUR).spend.limit == 70
    assert ledger.report("acme", "fast", 25 * HOUR).spend.limit == 50


def test_the_edge_refuses_when_nothing_is_left() -> None:
    ledger = book(BudgetSpec(daily_microusd=10))
    spend(ledger, "r1", 10)
    refused = ledger.admit_edge("acme", requests=1, tokens=1, spend=1, now=0)
    assert isinstance(refused, Denied)
    assert refused.kind is LimitKind.BUDGET_DAY


def test_soft_serves_and_tells_no_limit() -> None:
    ledger = book(BudgetSpec(monthly_microusd=10, daily_microusd=5, hard=False))
    spend(ledger, "r1", 1000)
    assert ledger.report("acme", "fast", 0).spend.limit == 0
    assert kept(ledger).month.microusd == 1000


def test_other_tenants_have_no_budget() -> None:
    ledger = book(BudgetSpec(monthly_microusd=1))
    assert isinstance(reserve(ledger, "r1", 1000, tenant="other"), Admitted)
    assert ledger.budgets.of("other") is None


def test_a_lease_of_the_evening_is_spent_on_the_new_day() -> None:
    ledger = book(BudgetSpec(daily_microusd=100), at("2026-11-23T23:00"))
    reserve(ledger, "late", 100)
    assert isinstance(reserve(ledger, "next", 1, HOUR), Denied)
    ledger.settle("acme", "fast", "late", 40, HOUR, spend=40)
    assert kept(ledger, HOUR) == Record(Tally("2026-11-24", 40), Tally("2026-11", 40))
    assert isinstance(reserve(ledger, "more", 60, HOUR), Admitted)


def test_thresholds_are_told_once_in_a_period_also_after_the_bound_has_moved() -> None:
    ledger = book(BudgetSpec(monthly_microusd=200, daily_microusd=100, alert_percent=(100, 50), hard=False))
    budget = ledger.budgets.of("acme")
    assert budget is not None
    assert budget.alerts(0) == []
    spend(ledger, "r1", 50)
    assert budget.alerts(0) == [Alert("2026-11-23", 50, False)]
    spend(ledger, "r2", 60)
    assert budget.alerts(0) == [Alert("2026-11-23", 100, False), Alert("2026-11", 50, True)]
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=110, hard=False, alert_percent=(50, 100, 120))})
    assert budget.alerts(0) == [Alert("2026-11", 100, True)]
    assert budget.alerts(0) == []
    assert kept(ledger) == Record(Tally("2026-11-23", 110, 100), Tally("2026-11", 110, 100))
    tomorrow, next_month = 12 * HOUR, 10 * 24 * HOUR
    spend(ledger, "r3", 22, tomorrow)
    assert budget.alerts(tomorrow) == [Alert("2026-11", 120, True)]
    spend(ledger, "r4", 111, next_month)
    assert budget.alerts(next_month) == [Alert("2026-12", 50, True), Alert("2026-12", 100, True)]


def test_a_changed_budget_holds_at_once_and_a_deleted_one_is_forgotten() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100))
    spend(ledger, "r1", 100)
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=150)})
    assert isinstance(reserve(ledger, "r2", 51), Denied)
    spend(ledger, "r3", 50)
    ledger.apply_budgets({})
    spend(ledger, "r4", 1000)
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=150)})
    assert kept(ledger).month.microusd == 0


@pytest.mark.parametrize("away", [HOUR, 40 * 24 * HOUR, 40 * 365 * 24 * HOUR])
def test_a_clock_that_goes_forward_and_back_begins_nothing_anew(away: int) -> None:
    wall = at("2026-11-30T23:30")
    ledger = book(BudgetSpec(monthly_microusd=100), wall)
    spend(ledger, "r1", 80)
    ledger.budgets.set_wall(wall + away, 0)
    spend(ledger, "r2", 15)
    ledger.budgets.set_wall(wall, 0)
    assert isinstance(reserve(ledger, "r3", 6), Denied)
    spend(ledger, "r4", 5)
    assert isinstance(reserve(ledger, "r5", 1), Denied)
    ledger.budgets.set_wall(wall + away, 0)
    # What was spent since the later month was first seen is its own.
    assert kept(ledger).month.microusd == 20
    assert isinstance(reserve(ledger, "r6", 81), Denied)


def test_a_clock_that_was_in_1970_for_a_while_begins_nothing_anew() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100))
    spend(ledger, "r1", 80)
    ledger.budgets.set_wall(0, 0)
    assert isinstance(reserve(ledger, "r2", 21), Denied)
    spend(ledger, "r3", 15)
    ledger.budgets.set_wall(NOON, 0)
    assert kept(ledger).month == Tally("2026-11", 95)


@pytest.mark.parametrize("first", ["Pacific/Kiritimati", "Pacific/Marquesas"])
def test_a_tenant_that_changes_its_zone_to_and_fro_spends_no_more_than_two_days(first: str) -> None:
    """At the hour that one of the zones has midnight behind it and the other one has not."""
    other = {"Pacific/Kiritimati": "Pacific/Marquesas", "Pacific/Marquesas": "Pacific/Kiritimati"}[first]
    ledger = book(BudgetSpec(monthly_microusd=1000, daily_microusd=100, time_zone=first))
    spend(ledger, "r0", 100)
    for turn in range(6):
        zone = other if turn % 2 == 0 else first
        ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=1000, daily_microusd=100, time_zone=zone)})
        while isinstance(reserve(ledger, f"r{turn}-{ledger.remembered_settled}", 10), Admitted):
            spend(ledger, f"s{turn}-{ledger.remembered_settled}", 10)
            ledger.end_held_by("", 0)
    assert kept(ledger).month.microusd <= 200


STEP = st.tuples(
    st.sampled_from(["reserve", "reserve", "reserve", "settle", "settle", "cancel", "wait", "clock", "zone"]),
    st.integers(0, 9),
    st.integers(0, 60),
    st.integers(-40 * 24, 40 * 24),
    st.sampled_from(ZONES),
)


@settings(deadline=None, max_examples=300)
@given(steps=st.lists(STEP, max_size=60), start=st.integers(at("2010-10-20"), at("2012-03-01")))
def test_no_calendar_day_or_month_sees_more_than_its_bound(steps, start: int) -> None:
    """Whatever clocks and zones do. What is settled at a time belongs to the latest day and month seen until then."""
    bounds = BudgetSpec(monthly_microusd=250, daily_microusd=100)
    ledger, zone, now, wall = book(bounds, start), Zone(""), 0, start
    day = month = ""
    days: Counter[str] = Counter()
    months: Counter[str] = Counter()
    for number, (action, which, amount, hours, name) in enumerate(steps):
        if action == "wait":
            now, wall = now + abs(hours) * HOUR // 24, wall + abs(hours) * HOUR // 24
        elif action == "clock":
            wall += hours * HOUR
            ledger.budgets.set_wall(wall, now)
        elif action == "zone":
            zone = Zone(name)
            ledger.apply_budgets({"acme": replace(bounds, time_zone=name)})
        day, month = max(day, zone.day(wall).key), max(month, zone.month(wall).key)
        leases = sorted(leases_of(ledger).values(), key=lambda lease: lease.key)
        settled = sum(lease.spend for lease in leases if lease.expires <= now)
        ledger.expire(now)
        if action == "reserve":
            reserve(ledger, f"r{number}", amount, now)
        elif action in ("settle", "cancel") and leases_of(ledger):
            lease = leases[which % len(leases)]
            used = lease.spend if action == "settle" else 0
            settled += used * ledger.settle("acme", "fast", lease.key[1], used, now, spend=used)
        days[day] += settled
        months[month] += settled
        assert kept(ledger, now) == Record(Tally(day, days[day]), Tally(month, months[month]))
    assert max(days.values(), default=0) <= 100
    assert max(months.values(), default=0) <= 250


def twin(name: str, life: str = "1") -> Replica:
    ledger = Ledger(part=(name, life), track_changes=True)
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=1000, hard=False)})
    ledger.budgets.set_wall(NOON, 0)
    return Replica(ledger)


def tell(one: Replica, other: Replica) -> None:
    logged = one.flush(0)
    assert logged is None or other.follow(logged, 0)


def month(one: Replica) -> int:
    return kept(one.ledger).month.microusd


def test_replicas_follow_and_join_without_counting_twice() -> None:
    a, b, late = twin("a"), twin("b"), twin("c")
    spend(a.ledger, "r1", 100)
    tell(a, b)
    assert month(b) == 100
    # A split: each goes on by itself.
    spend(a.ledger, "r2", 10)
    spend(b.ledger, "r3", 20)
    a.flush(0), b.flush(0)
    for one, other in ((a, b), (b, a), (a, b)):
        take_over(one, other, 0)
    assert month(a) == month(b) == 130
    take_over(late, a, 0)
    take_over(late, b, 0)
    assert month(late) == 130


def test_a_lease_that_ended_here_and_not_yet_there_is_counted_once() -> None:
    a, b = twin("a"), twin("b")
    reserve(a.ledger, "r1", 40)
    tell(a, b)
    assert b.ledger.expire(LEASE) == 1
    assert month(b) == 40
    spend(a.ledger, "r2", 5)
    a.flush(0)  # lost on its way
    take_over(b, a, LEASE)
    b.ledger.expire(LEASE)
    assert month(b) == 45
    a.ledger.expire(LEASE)
    take_over(a, b, LEASE)
    assert month(a) == month(b) == 45


def adopt(one: Replica, amount: int) -> None:
    budget = one.ledger.budgets.of("acme")
    assert budget is not None
    budget.adopt(Record(Tally("2026-11-23", amount, 50), Tally("2026-11", amount, 50)))


@pytest.mark.parametrize("stored", [0, 100, 120])
def test_the_record_and_the_others_state_together_count_nothing_twice(stored: int) -> None:
    """The owner had 100 when all of them began, and has spent 20 more; the record is of before, between or after."""
    a, b = twin("a"), twin("b")
    adopt(a, 100)
    spend(a.ledger, "r1", 20)
    a.flush(0)
    for order in ("record first", "state first"):
        b = twin("b")
        if order == "record first":
            adopt(b, stored)
        take_over(b, a, 0)
        adopt(b, stored)
        assert month(b) == 120
        assert kept(b.ledger).month.alert_percent == 50
    # And in a split both sides' own spend is added up.
    spend(a.ledger, "r2", 3)
    spend(b.ledger, "r3", 4)
    a.flush(0), b.flush(0)
    take_over(a, b, 0)
    take_over(b, a, 0)
    assert month(a) == month(b) == 127


def test_a_record_of_a_day_that_is_over_takes_nothing_and_of_a_later_one_leads_on() -> None:
    one = twin("a")
    budget = one.ledger.budgets.of("acme")
    assert budget is not None
    spend(one.ledger, "r1", 10)
    budget.adopt(Record(Tally("2026-11-22", 500, 100), Tally("2026-10", 900, 100)))
    assert kept(one.ledger) == Record(Tally("2026-11-23", 10), Tally("2026-11", 10))
    budget.adopt(Record(Tally("2026-11-24", 7, 80), Tally("2026-11", 30)))
    assert kept(one.ledger) == Record(Tally("2026-11-24", 7, 80), Tally("2026-11", 30))
    budget.adopt(Record())
    assert kept(one.ledger) == Record(Tally("2026-11-24", 7, 80), Tally("2026-11", 30))


def test_records_join_by_period() -> None:
    old, new = (
        Record(Tally("2026-11-22", 9, 80), Tally("2026-11", 20)),
        Record(Tally("2026-11-23", 2), Tally("2026-11", 15, 50)),
    )
    assert old.joined(new) == new.joined(old) == Record(Tally("2026-11-23", 2), Tally("2026-11", 20, 50))
    assert Record().joined(old) == old.joined(Record()) == old


def test_many_starts_within_a_month_are_added_up_the_same_everywhere() -> None:
    everything, late = twin("b", "9999"), twin("c", "9998")
    for life in range(100, 200):
        one = twin("a", str(life))
        spend(one.ledger, f"r{life}", 1)
        tell(one, everything)
        if life == 150:
            take_over(late, everything, 0)
    assert month(everything) == 100
    budget = everything.ledger.budgets.of("acme")
    assert budget is not None
    assert len(budget.state("acme").months[0].parts) <= 33
    assert dict(budget.state("acme").months[0].parts)[STORED] >= 60
    take_over(late, everything, 0)
    take_over(everything, late, 0)
    assert month(everything) == month(late) == 100


def test_only_the_last_periods_are_kept() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100))
    for number in range(60):
        spend(ledger, f"r{number}", 1, number * 24 * HOUR)
    budget = ledger.budgets.of("acme")
    assert budget is not None
    state = budget.state("acme")
    assert [each.key for each in state.days] == ["2027-01-19", "2027-01-20", "2027-01-21"]
    assert [each.key for each in state.months] == ["2026-11", "2026-12", "2027-01"]


def test_a_zone_that_nobody_knows_is_counted() -> None:
    ledger = book(BudgetSpec(monthly_microusd=100, time_zone="Mars/Olympus"))
    assert ledger.budgets.unknown_zones() == ["Mars/Olympus"]
    spend(ledger, "r1", 1)
    ledger.apply_budgets({"acme": BudgetSpec(monthly_microusd=100)})
    assert ledger.budgets.unknown_zones() == []


def test_each_of_several_holders_has_a_part() -> None:
    assert BudgetSpec(100, 2, time_zone="Asia/Tokyo").shared(3) == BudgetSpec(33, 1, time_zone="Asia/Tokyo")
    assert BudgetSpec(0, 10).shared(2) == BudgetSpec(0, 5)


def test_the_share_of_each_bound_that_is_spent() -> None:
    ledger = book(BudgetSpec(daily_microusd=100, monthly_microusd=1000))
    budget = ledger.budgets.of("acme")
    assert budget is not None
    spend(ledger, "r1", 90)
    reserve(ledger, "r2", 5)  # is not spent
    assert dict(budget.spent(0)) == {False: 0.9, True: 0.09}
    assert dict(budget.spent(24 * HOUR)) == {False: 0.0, True: 0.09}
    budget.apply(BudgetSpec(monthly_microusd=100))
    assert dict(budget.spent(0)) == {True: 0.9}
