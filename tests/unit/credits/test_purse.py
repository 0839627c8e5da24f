"""Which credit a request runs on, how many are asked for, and that each is used once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.credits import Ask, Credit, Purse

ASK = Ask(("m@1", "paid", ("zone-a",)), 100, 50)


def purse(*credits: Credit[str], ask: Ask = ASK) -> Purse[str]:
    made: Purse[str] = Purse()
    made.wanted(ask, 0.0)
    made.put(ask, 0, credits)
    return made


def credit(name: str = "c0", worker: str = "w0", **more: float) -> Credit[str]:
    fields = {"prompt_tokens": 128, "max_output_tokens": 50, "until": 1.0, **more}
    return Credit(name, worker, **fields)  # type: ignore[arg-type]


def test_each_is_used_once_the_oldest_first() -> None:
    mine = purse(credit("old"), credit("new"))
    assert [mine.take(ASK, 0.5) for _ in range(3)] == ["old", "new", None]


def test_what_has_run_out_is_not_used() -> None:
    mine = purse(credit(until=1.0))
    assert mine.take(ASK, 1.0) is None
    assert len(mine) == 0
    assert [mine.run_out(), mine.run_out(), mine.empty()] == [["c0"], [], []]


@pytest.mark.parametrize(
    "ask",
    [
        replace(ASK, kind=("m@1", "free", ("zone-a",))),
        replace(ASK, prompt_tokens=129),
        replace(ASK, max_output_tokens=51),
        replace(ASK, ttft=0.1),
    ],
)
def test_another_kind_a_larger_request_and_one_in_more_of_a_hurry_ask(ask: Ask) -> None:
    mine = purse(credit(first_token=0.2))
    assert mine.take(ask, 0.0) is None
    assert mine.take(replace(ASK, ttft=0.2), 0.0) == "c0"


def test_a_request_whose_prefix_may_be_elsewhere_asks() -> None:
    known = replace(ASK, prefix_hashes=(1, 2, 3), prefix_block=32)
    mine = purse(credit("here", "w0"), credit("there", "w1"))
    assert mine.take(known, 0.0) is None
    mine.placed(known, "w1")
    assert mine.take(replace(known, prefix_hashes=(1, 9, 8)), 0.0) is None
    assert len(mine) == 2
    assert mine.take(known, 0.0) == "there"
    assert mine.take(known, 0.0) is None


def test_a_few_tokens_elsewhere_do_not_matter() -> None:
    known = replace(ASK, prefix_hashes=(1, 2, 3), prefix_block=32)
    mine = purse(credit("c0", "w0", indifferent_tokens=64))
    assert mine.take(known, 0.0) is None
    mine.placed(replace(known, prefix_hashes=(1,)), "w1")
    assert mine.take(known, 0.0) is None
    mine.placed(replace(known, prefix_hashes=(1,)), "w0")
    assert mine.take(known, 0.0) == "c0"


def test_nothing_is_wanted_for_what_comes_seldom() -> None:
    mine: Purse[str] = Purse()
    assert [mine.wanted(ASK, 2.0 * turn) for turn in range(20)] == [0] * 20


def test_as_many_are_wanted_as_are_used_until_they_are_replaced() -> None:
    mine: Purse[str] = Purse()
    asked = 0
    for turn in range(200):
        wanted = mine.wanted(ASK, 0.02 * turn)
        asked += wanted
    assert asked == 8  # 50 a second for 0.15 s; what was asked for is not asked for again
    mine.put(ASK, asked, [credit(str(number), until=10.0) for number in range(5)])
    assert mine.wanted(ASK, 4.0) == 3
    mine.put(ASK, 3)
    assert mine.wanted(replace(ASK, kind="other"), 4.0) == 0


def test_what_goes_back_is_used_no_more() -> None:
    mine = purse(credit("a"), credit("b"))
    assert mine.empty() == ["a", "b"]
    assert mine.take(ASK, 0.0) is None


@given(st.lists(st.tuples(st.sampled_from("twp"), st.integers(0, 2), st.floats(0.0, 0.4)), max_size=80))
def test_no_credit_is_given_twice_and_never_more_than_sixteen_are_wanted(
    history: list[tuple[str, int, float]],
) -> None:
    mine: Purse[str] = Purse()
    now, made, taken = 0.0, 0, []
    outstanding = dict.fromkeys(range(3), 0)
    for what, kind, later in history:
        now += later
        ask = replace(ASK, kind=kind)
        if what == "t":
            got = mine.take(ask, now)
            if got is not None:
                assert float(got.split()[1]) > now
                taken.append(got)
        elif what == "w":
            outstanding[kind] += mine.wanted(ask, now)
        else:
            batch = [credit(f"{made + n} {now + 0.75}", until=now + 0.75) for n in range(outstanding[kind])]
            made += len(batch)
            mine.put(ask, outstanding[kind], batch)
            outstanding[kind] = 0
        assert outstanding[kind] <= 16
    assert len(set(taken)) == len(taken) <= made
