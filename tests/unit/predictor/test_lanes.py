"""Where a version runs, and which of its batches run on the event loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.executors.lanes import INLINE_SECONDS, Lane, OwnCost, choose, undisturbed

QUICK = [(1, 0.0001), (8, 0.00017), (64, 0.00073)]


@given(st.lists(st.tuples(st.sampled_from([1, 8, 64]), st.floats(0, 0.1)), max_size=20))
def test_a_busy_machine_changes_no_lane_while_one_run_of_each_is_undisturbed(late: list[tuple[int, float]]) -> None:
    disturbed = [(rows, dict(QUICK)[rows] + seconds) for rows, seconds in late]
    assert undisturbed([*disturbed, *QUICK]) == QUICK
    assert choose(wanted=None, native=True, samples=[*disturbed, *QUICK], stall=0.0) is Lane.INLINE
    assert OwnCost([*disturbed, *QUICK]).of(64) == pytest.approx(OwnCost(QUICK).of(64))


def test_what_takes_long_by_itself_leaves_the_event_loop() -> None:
    slow = [(1, INLINE_SECONDS * 1.1), (8, 0.1)]
    assert choose(wanted=None, native=True, samples=slow, stall=0.0) is Lane.THREAD
    assert choose(wanted=None, native=False, samples=QUICK, stall=0.0) is Lane.PROCESS
    assert choose(wanted=None, native=True, samples=QUICK, stall=0.021) is Lane.PROCESS
    assert choose(wanted=Lane.THREAD, native=True, samples=QUICK, stall=0.0) is Lane.THREAD


def test_the_own_cost_is_a_line_through_the_runs_and_follows_what_batches_take() -> None:
    cost = OwnCost(QUICK)
    assert [cost.of(rows) for rows in (1, 8, 64)] == pytest.approx([0.0001, 0.00017, 0.00073])
    assert OwnCost([(1, 0.0001)]).of(64) == pytest.approx(0.0001)
    for _ in range(100):  # inputs that are longer than those of the warm-up
        cost.observe(1, 0.002)
    assert cost.of(1) > INLINE_SECONDS
    for _ in range(200):
        cost.observe(8, 0.00017)
    assert cost.of(8) == pytest.approx(0.00017, rel=0.01)
    for _ in range(100):  # it waits for a GPU
        cost.observe(8, 0.0)
    assert cost.of(8) == pytest.approx(0.00017, rel=0.01)
    assert OwnCost([(1, 0.0), (8, 0.0)]).of(8) <= INLINE_SECONDS
