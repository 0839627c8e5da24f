"""Use over a sliding period: never forgotten too early, at most one slot too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.quota import MINUTE_NS, NEVER, SLOTS, Use, Window

SECOND = 1_000_000_000
SLOT = MINUTE_NS // SLOTS
CHARGES = st.lists(
    st.tuples(st.integers(0, 5 * SECOND), st.integers(0, 500), st.sampled_from([("a", "1"), ("b", "1"), ("b", "2")])),
    max_size=60,
)


@given(charges=CHARGES, gap=st.integers(0, 70 * SECOND))
def test_used_is_at_least_the_last_minute_and_at_most_a_slot_more(charges, gap) -> None:
    window, now, made = Window(), 0, []
    for step, amount, part in charges:
        now += step
        window.charge(amount, now, part)
        made.append((now, amount))
    now += gap
    exact = sum(amount for at, amount in made if at > now - MINUTE_NS)
    loose = sum(amount for at, amount in made if at > now - MINUTE_NS - SLOT)
    assert exact <= window.used(now) <= loose


@given(charges=CHARGES, amount=st.integers(1, 3000))
def test_the_wait_is_exact(charges, amount: int) -> None:
    window, now = Window(), 0
    for step, units, part in charges:
        now += step
        window.charge(units, now, part)
    before = window.used(now)
    wait = window.wait(amount, now)
    if before < amount:
        assert wait == NEVER
    else:
        assert wait > 0
        assert window.used(now + wait - 1) > before - amount
        assert window.used(now + wait) <= before - amount


@given(charges=CHARGES)
def test_it_is_empty_after_the_reset_and_not_before(charges) -> None:
    window, now = Window(), 0
    for step, units, part in charges:
        now += step
        window.charge(units, now, part)
    reset = window.reset(now)
    assert (reset == 0) == (window.used(now) == 0)
    if reset:
        assert window.used(now + reset - 1) > 0
    assert window.used(now + reset) == 0


@given(charges=CHARGES, later=st.integers(0, 10 * SECOND), elsewhere=st.integers(-(10**12), 10**12))
def test_a_state_goes_on_elsewhere_as_it_would_have_here(charges, later: int, elsewhere: int) -> None:
    window, now = Window(), 0
    for step, units, part in charges:
        now += step
        window.charge(units, now, part)
    again = Window()
    for part, uses in window.state(now).items():
        again.replace(part, uses, elsewhere)
    assert again.used(elsewhere + later) == window.used(now + later)
    assert again.reset(elsewhere) == window.reset(now)


def test_replacing_a_part_leaves_the_others() -> None:
    window = Window()
    window.charge(5, 0, ("a", "1"))
    window.charge(7, 0, ("b", "1"))
    window.replace(("a", "1"), [Use(SECOND, 2), Use(2 * SECOND, 1), Use(0, 99)], 0)
    assert window.used(0) == 10
    assert window.used(SECOND) == 8
    window.replace(("b", "1"), [], SECOND)
    assert window.used(SECOND) == 1


def test_another_period_keeps_what_counts() -> None:
    window = Window(MINUTE_NS)
    window.charge(5, 0)
    window.rescale(2 * MINUTE_NS)
    assert window.used(MINUTE_NS + 2 * SLOT) == 5
    window.rescale(MINUTE_NS)
    assert window.used(MINUTE_NS + 2 * SLOT) == 0


def test_slots_are_bounded_however_many_charges_come() -> None:
    window = Window()
    for number in range(10_000):
        window.charge(1, number * 20_000_000)
    window.used(200 * SECOND)
    assert len(window._parts[("", "")]) <= SLOTS + 1


def test_a_period_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="period"):
        Window(0)
