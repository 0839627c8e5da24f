"""Objectives, prefix names, readers and times to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.errors import Reason, WeirError
from libs.occupancy import LATEST, SOONEST, Turnover, jittered
from libs.outcomes import Objectives, Standing, judge
from libs.outcomes.objectives import ttft_left
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.finals import ran
from services.gateway.policy.prefix import BLOCK, MOST, prefix_hashes
from services.gateway.policy.readers import Verdict, beyond, verdict

ALL = Objectives(ttft=1.0, itl=0.1, e2e_p95=5.0)


# ---- objectives -------------------------------------------------------------------------------


def _judge(objectives: Objectives, finish: Finish, **facts: float) -> dict[str, bool]:
    given = {"first": 0.5, "decode": 0.9, "longest": 10, "total": 2.0, **facts}
    breakdown = Breakdown(decode=given["decode"], total=given["total"])
    end = End(finish=finish, usage=Usage(), breakdown=breakdown, error=WeirError(Reason.INTERNAL, "a fault"))
    found = ran(end, first=given["first"], longest=int(given["longest"]), model_version="", model="")
    return dict(judge(objectives, Standing.NEITHER, found))


@pytest.mark.parametrize(
    ("finish", "facts", "expected"),
    [
        (Finish.STOP, {}, {"ttft_p95": True, "itl_p95": True, "e2e_p95": True}),
        (Finish.STOP, {"first": 1.1}, {"ttft_p95": False, "itl_p95": True, "e2e_p95": True}),
        (Finish.LENGTH, {"decode": 0.91}, {"ttft_p95": True, "itl_p95": False, "e2e_p95": True}),
        (Finish.STOP, {"total": 5.1}, {"ttft_p95": True, "itl_p95": True, "e2e_p95": False}),
        (Finish.STOP, {"longest": 1}, {"ttft_p95": True, "e2e_p95": True}),
        # Who left tells nothing of what had not come yet; nor does a failure.
        (Finish.CANCELLED, {"first": 0, "decode": 0, "total": 9.0}, {}),
        (Finish.ERROR, {"first": 0, "decode": 0, "total": 9.0}, {}),
        (Finish.ERROR, {"total": 9.0}, {"ttft_p95": True, "itl_p95": True}),
        # A deadline beyond the objective that brought nothing has missed it; a shorter one tells nothing.
        (Finish.DEADLINE, {"first": 0, "decode": 0, "total": 9.0}, {"ttft_p95": False, "e2e_p95": False}),
        (Finish.DEADLINE, {"first": 0, "decode": 0, "total": 0.5}, {}),
    ],
)
def test_objectives_are_judged_by_what_is_known(
    finish: Finish, facts: dict[str, float], expected: dict[str, bool]
) -> None:
    assert _judge(ALL, finish, **facts) == expected


def test_nothing_declared_is_nothing_judged() -> None:
    assert _judge(Objectives(), Finish.STOP) == {}
    assert ttft_left(Objectives(), 0.3) is None
    assert ttft_left(ALL, 0.25) == 0.75
    assert ttft_left(ALL, 3.0) == 0.001


# ---- prefixes ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5 * BLOCK), st.lists(st.integers(0, 9), max_size=2 * BLOCK))
def test_equal_beginnings_have_equal_names(prompt: list[int], tail: list[int]) -> None:
    short, long = prefix_hashes("t", "m", prompt), prefix_hashes("t", "m", prompt + tail)
    assert len(short) == len(prompt) // BLOCK
    assert long[: len(short)] == short


@given(st.lists(st.integers(0, 99), min_size=3 * BLOCK, max_size=3 * BLOCK), st.integers(0, 3 * BLOCK - 1))
def test_a_different_token_names_everything_after_it_anew(prompt: list[int], at: int) -> None:
    other = [*prompt]
    other[at] += 100
    same = [a == b for a, b in zip(prefix_hashes("t", "m", prompt), prefix_hashes("t", "m", other), strict=True)]
    assert same == [block < at // BLOCK for block in range(3)]


def test_names_are_salted_bounded_and_fit_the_wire() -> None:
    prompt = list(range(100 * BLOCK))
    names = prefix_hashes("t", "m", prompt)
    assert len(names) == MOST
    assert all(0 <= name < 2**64 for name in names)
    assert not set(names) & set(prefix_hashes("u", "m", prompt))
    assert not set(names) & set(prefix_hashes("t", "n", prompt))


# ---- readers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle", "unread", "ended", "expected"),
    [
        (9.9, 0, False, Verdict.KEEP),
        (10.0, 0, False, Verdict.END),
        (0.0, 101, False, Verdict.END),
        (10.0, 101, True, Verdict.KEEP),
        (20.0, 0, True, Verdict.CUT),
    ],
)
def test_a_reader_has_a_stall_to_go_on_and_another_to_hear_of_its_end(
    idle: float, unread: int, ended: bool, expected: Verdict
) -> None:
    assert verdict(idle=idle, unread=unread, ended=ended, stall=10.0, most=100) is expected


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 5000))
def test_the_largest_go_until_the_rest_fits(unread: list[int], most: int) -> None:
    gone = beyond(unread, most)
    kept = [size for place, size in enumerate(unread) if place not in gone]
    assert sum(kept) <= most
    if gone:
        assert min(unread[place] for place in gone) >= max(kept, default=0)
        assert sum(kept) + unread[gone[-1]] > most  # the last one had to go


# ---- when to come back ------------------------------------------------------------------------


def test_the_wait_is_the_queue_over_the_rate() -> None:
    turnover = Turnover(0.0)
    assert turnover.wait(1) == LATEST  # nothing has ended yet
    for second in range(1, 200):
        for _ in range(20):
            turnover.ended()
        turnover.tick(float(second))
    assert turnover.rate == pytest.approx(20, rel=0.01)
    assert turnover.wait(100) == pytest.approx(5, rel=0.01)
    assert turnover.wait(1) == SOONEST
    assert turnover.wait(10_000) == LATEST
    turnover.tick(199.0)
    assert turnover.rate == pytest.approx(20, rel=0.01)


def test_jitter_only_adds() -> None:
    assert jittered(2.0, lambda: 0.0) == 2.0
    assert jittered(2.0, lambda: 0.5) == 2.5
