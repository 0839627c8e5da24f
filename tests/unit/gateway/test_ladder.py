"""The degradation ladder's decisions, and what it remembers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as rebound

from libs.catalog.plans import (
    CachedAnswer,
    CapOutput,
    CpuFallback,
    DefaultAnswer,
    Plan,
    SmallerModel,
    Step,
)
from services.gateway.policy.answers import Answer, AnswerCache, answer_key, repeatable
from services.gateway.policy.events import Finish
from services.gateway.policy.ladder import Offer, ahead, applies, next_step
from services.gateway.policy.parameters import NO_OUTPUT
from services.gateway.policy.pressure import MOST, Pressures
from services.gateway.policy.spec import Structure

OFFER = Offer(model="big", pool="gpu", max_tokens=100)
CAP, SMALL, CACHED = CapOutput(10), SmallerModel({"big": "small"}), CachedAnswer(60.0)
FIXED, CPU = DefaultAnswer("busy"), CpuFallback({"gpu": "cpu"})
BOUND = rebound(NO_OUTPUT, max_tokens=8)


@pytest.mark.parametrize(
    ("step", "offer", "expected"),
    [
        (CAP, OFFER, True),
        (CAP, replace(OFFER, max_tokens=10), False),
        (CAP, replace(OFFER, structured=True), False),
        (CapOutput(0), OFFER, False),
        (SMALL, OFFER, True),
        (SMALL, replace(OFFER, model="small"), False),
        (SMALL, replace(OFFER, tokens_given=True), False),
        (SmallerModel({"big": "big"}), OFFER, False),
        (CACHED, OFFER, False),
        (CACHED, replace(OFFER, repeatable=True), True),
        (FIXED, OFFER, True),
        (FIXED, replace(OFFER, structured=True), False),
        (FIXED, replace(OFFER, logprobs=True), False),
        (DefaultAnswer(""), OFFER, False),
        (CPU, OFFER, True),
        (CPU, replace(OFFER, pool="cpu"), False),
    ],
)
def test_a_step_applies_where_it_changes_something_and_breaks_no_promise(
    step: Step, offer: Offer, expected: bool
) -> None:
    assert applies(step, offer) is expected


@given(
    st.lists(st.sampled_from([CAP, SMALL, CACHED, FIXED, CPU]), max_size=8),
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)
def test_the_next_step_is_the_first_that_applies(ladder: list[Step], start: int, again: bool, exact: bool) -> None:
    offer = replace(OFFER, repeatable=again, structured=exact)
    found = next_step(ladder, start, offer)
    able = [place for place in range(start, len(ladder)) if applies(ladder[place], offer)]
    assert found == ((able[0], ladder[able[0]]) if able else None)


def test_the_strictest_cap_of_the_pressure_comes_ahead() -> None:
    ladder = (CapOutput(50, 0.5), CapOutput(20, 0.9), CapOutput(5), SMALL)
    assert ahead(ladder, 0.4, OFFER) is None
    assert ahead(ladder, 0.6, OFFER) == CapOutput(50, 0.5)
    assert ahead(ladder, 2.0, OFFER) == CapOutput(20, 0.9)


def test_pressure_is_forgotten() -> None:
    pressures = Pressures(hold=5.0)
    pressures.note("pool", 1, "a", 0.7, 100.0)
    assert pressures.of("pool", 1, "a", 105.0) == 0.7
    assert pressures.of("pool", 1, "a", 105.1) == 0.0
    assert pressures.of("pool", 2, "a", 100.0) == 0.0
    assert pressures.of("pool", 1, "b", 100.0) == 0.0


def test_so_many_pressures_are_remembered_and_the_oldest_goes() -> None:
    pressures = Pressures(hold=5.0)
    for number in range(MOST + 1):
        pressures.note("pool", 1, str(number), 0.7, 100.0)
        pressures.note("pool", 1, "busy", 0.9, 100.0)
    assert pressures.of("pool", 1, "busy", 100.0) == 0.9
    assert pressures.of("pool", 1, "0", 100.0) == 0.0
    assert pressures.of("pool", 1, str(MOST), 100.0) == 0.7


def test_only_plans_that_can_use_answers_remember_them() -> None:
    assert Plan(ladder=(CAP, CACHED)).remembers
    assert not Plan(ladder=(CAP,)).remembers


# ---- answers ----------------------------------------------------------------------------------


def test_answers_that_hang_on_chance_are_not_repeatable() -> None:
    assert repeatable(BOUND, seeded=False)
    warm = rebound(BOUND, temperature=1.0)
    assert not repeatable(warm, seeded=False)
    assert repeatable(warm, seeded=True)
    assert not repeatable(rebound(BOUND, logprobs=1), seeded=True)


def test_whatever_shapes_an_answer_is_in_its_key() -> None:
    keys = {
        answer_key("a", "m@1", [1, 2], BOUND, "default@1"),
        answer_key("b", "m@1", [1, 2], BOUND, "default@1"),
        answer_key("a", "m@2", [1, 2], BOUND, "default@1"),
        answer_key("a", "m@1", [1, 3], BOUND, "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, max_tokens=9), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, stop=("x",)), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, seed=1), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, min_tokens=1), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, stop_token_ids=(1,)), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, bad_words=((1,),)), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, structure=Structure("grammar", "x")), "default@1"),
        answer_key("a", "m@1", [1, 2], rebound(BOUND, structure=Structure("regex", "x")), "default@1"),
        answer_key("a", "m@1", [1, 2], BOUND, "default@2"),
        answer_key("am", "@1", [1, 2], BOUND, "default@1"),
    }
    assert len(keys) == 14
    assert answer_key("a", "m@1", [1, 2], BOUND, "default@1") in keys


def _answer(length: int) -> Answer:
    return Answer(choices=(("x" * length, Finish.STOP),), prompt_tokens=1, completion_tokens=1)


def test_an_answer_has_its_age() -> None:
    cache = AnswerCache(max_bytes=100_000)
    cache.put(b"k", _answer(1), 10.0)
    assert cache.get(b"k", max_age=5.0, now=15.0) == _answer(1)
    assert cache.get(b"k", max_age=5.0, now=15.1) is None
    assert cache.get(b"other", max_age=5.0, now=10.0) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3000), st.booleans()), max_size=60))
def test_the_cache_keeps_its_bound_and_its_count(calls: list[tuple[int, int, bool]]) -> None:
    cache = AnswerCache(max_bytes=40_000)
    for now, (name, length, store) in enumerate(calls):
        key = bytes([name])
        if store:
            cache.put(key, _answer(length), float(now))
        else:
            cache.get(key, max_age=1e9, now=float(now))
        assert cache.size <= 40_000
        assert cache.size == sum(answer.size for answer, _ in cache._entries.values())


def test_the_least_recently_used_answer_leaves_first() -> None:
    one = _answer(500).size
    cache = AnswerCache(max_bytes=10 * one)
    for name in range(10):
        cache.put(bytes([name]), _answer(500), 0.0)
    assert cache.get(bytes([0]), max_age=1.0, now=0.0)
    cache.put(b"new", _answer(500), 0.0)
    assert cache.get(bytes([0]), max_age=1.0, now=0.0)
    assert cache.get(bytes([1]), max_age=1.0, now=0.0) is None
