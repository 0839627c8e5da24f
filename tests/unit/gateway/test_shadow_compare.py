"""Comparing a copy's answer with the user's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as rebound

from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.finals import FinalAnswer, FinalChoice
from services.gateway.policy.parameters import NO_OUTPUT
from services.gateway.shadow.compare import Comparison, comparable, compare, repeatable

TOKENS = st.lists(st.integers(0, 3), max_size=12).map(tuple)
LOGPROBS = st.floats(-50, 0)
PARAMETERS = rebound(NO_OUTPUT, max_tokens=8)


def answer(*choices: FinalChoice, moved: bool = False) -> FinalAnswer:
    end = End(finish=Finish.STOP, usage=Usage(), breakdown=Breakdown())
    return FinalAnswer(model_version="m@1", choices=choices, end=end, first_after=0.1, moved=moved)


def choice(*tokens: int, logprobs: tuple[float, ...] = (), finish: Finish = Finish.STOP) -> FinalChoice:
    return FinalChoice(tokens, logprobs, finish)


@st.composite
def answers(draw: st.DrawFn) -> FinalAnswer:
    made = []
    for tokens in draw(st.lists(TOKENS, min_size=1, max_size=3)):
        scores = draw(st.lists(LOGPROBS, min_size=len(tokens), max_size=len(tokens))) if draw(st.booleans()) else []
        made.append(FinalChoice(tokens, tuple(scores), draw(st.sampled_from([Finish.STOP, Finish.LENGTH]))))
    return answer(*made)


@given(answers())
def test_an_answer_equals_itself(given_answer: FinalAnswer) -> None:
    found = compare(given_answer, given_answer, exactness=True)
    assert (found.exact, found.length, found.same_finish, found.first_difference) == (True, 1.0, True, None)
    assert found.logprob in (0.0, None)


@given(answers(), answers())
def test_it_does_not_matter_whose_answer_is_whose(one: FinalAnswer, other: FinalAnswer) -> None:
    there, back = compare(one, other, exactness=True), compare(other, one, exactness=True)
    assert replace(there, logprob=None) == replace(back, logprob=None)
    assert (there.logprob or 0.0) == pytest.approx(back.logprob or 0.0)


@given(answers(), answers())
def test_scores_stay_within_their_ranges(one: FinalAnswer, other: FinalAnswer) -> None:
    found = compare(one, other, exactness=True)
    same = [c.tokens for c in one.choices] == [c.tokens for c in other.choices]
    assert found.exact is (same and found.same_finish)
    assert 0.0 <= found.length <= 1.0
    assert found.logprob is None or 0.0 <= found.logprob <= 50.0
    if len(one.choices) == len(other.choices):
        assert (found.first_difference is None) is same
    for _, value in found.scores():
        assert math.isfinite(value)


@given(TOKENS.filter(bool), st.data())
def test_the_first_token_that_differs_is_found(tokens: tuple[int, ...], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = (*tokens[:place], 9, *tokens[place + 1 :])
    found = compare(answer(choice(*tokens)), answer(choice(*other)), exactness=True)
    assert (found.exact, found.first_difference) == (False, place)


def test_log_probabilities_count_up_to_the_first_difference() -> None:
    one = choice(1, 2, 3, logprobs=(-1.0, -2.0, -9.0))
    other = choice(1, 2, 4, logprobs=(-1.5, -2.1, -0.1))
    found = compare(answer(one), answer(other), exactness=True)
    assert found.logprob == pytest.approx(0.3)
    assert dict(found.scores()) == {"shadow_exact": 0.0, "shadow_length": 1.0, "shadow_logprob": found.logprob}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (choice(1, 2), choice(1, 2, logprobs=(-1.0, -1.0))),
        (choice(1, logprobs=(-1.0,)), choice(2, logprobs=(-1.0,))),
        (choice(1, logprobs=(-math.inf,)), choice(1, logprobs=(-1.0,))),
        (choice(), choice()),
    ],
)
def test_without_common_log_probabilities_there_is_no_distance(one: FinalChoice, other: FinalChoice) -> None:
    found = compare(answer(one), answer(other), exactness=True)
    assert found.logprob is None
    assert "shadow_logprob" not in dict(found.scores())


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([choice(1, 2, 3, 4)], [choice(1)], Comparison(False, 0.25, True, None, 1)),
        ([choice()], [choice(1)], Comparison(False, 0.0, True, None, 0)),
        ([choice(1)], [choice(1, finish=Finish.LENGTH)], Comparison(False, 1.0, False, None, None)),
        ([choice(1), choice(2)], [choice(1)], Comparison(False, 0.5, False, None, 0)),
        ([choice(1), choice(2)], [choice(1), choice(2)], Comparison(True, 1.0, True, None, None)),
    ],
)
def test_lengths_ends_and_choices(one: list[FinalChoice], other: list[FinalChoice], expected: Comparison) -> None:
    assert compare(answer(*one), answer(*other), exactness=True) == expected


def test_where_chance_plays_a_part_exactness_is_not_counted() -> None:
    found = compare(answer(choice(1)), answer(choice(2)), exactness=False)
    assert found.exact is None
    assert dict(found.scores()) == {"shadow_length": 1.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"temperature": 0.7}, False), ({"temperature": 0.7, "seed": 0}, True), ({"seed": 5}, True)],
)
def test_what_can_be_repeated(changes: dict[str, object], expected: bool) -> None:
    assert repeatable(rebound(PARAMETERS, **changes)) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize("finish", list(Finish))
def test_only_whole_answers_of_one_version_are_compared(finish: Finish) -> None:
    whole = finish in (Finish.STOP, Finish.LENGTH)
    assert comparable(answer(choice(1, finish=finish))) is whole
    assert not comparable(answer(choice(1, finish=finish), moved=True))
