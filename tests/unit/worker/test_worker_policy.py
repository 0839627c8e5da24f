"""Outbox, checks and agreement with the registry."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from libs.errors import Reason, WeirError
from services.worker.engines.port import (
    SAMPLING_BOUNDS,
    EngineInfo,
    FinishReason,
    SamplingParams,
    Structure,
    TokenLogprob,
)
from services.worker.policy.agreement import disagreement
from services.worker.policy.checks import Asked, check_group
from services.worker.policy.outbox import Outbox

INFO = EngineInfo(
    engine="e", simulated=False, models=("m@1",), block_size=4, total_blocks=64, max_running=4, max_context=100
)


@given(
    steps=st.lists(st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 99), min_size=1, max_size=3)))),
    reads=st.sets(st.integers(0, 20)),
)
@settings(deadline=None)
def test_whatever_the_reader_does_every_sequence_gets_its_tokens_in_order(steps, reads):
    outbox, sent, got = Outbox(), {}, {}
    batches = []
    for number, step in enumerate(steps):
        for sequence, tokens in dict(step).items():
            sent.setdefault(sequence, []).extend(tokens)
            outbox.add(sequence, list(tokens))
        if number in reads:
            batches.append(outbox.take())
            assert outbox.unread == 0
    batches.append(outbox.take())
    for batch in batches:
        for sequence, tokens in batch.tokens.items():
            got.setdefault(sequence, []).extend(tokens)
    assert got == sent


def test_an_outbox_keeps_firsts_logprobs_and_endings():
    outbox = Outbox()
    assert outbox.batch.empty
    outbox.add_first(1, 16, 0.25, "cafe")
    outbox.add(1, [5])
    outbox.add_logprobs(1, [TokenLogprob(-1.0, [])])
    outbox.add(1, [6])
    outbox.add_logprobs(1, [TokenLogprob(-2.0, [])])
    outbox.finish(1, FinishReason.STOP, "")
    outbox.finish(2, FinishReason.ERROR, "broken")
    assert outbox.unread == 2
    batch = outbox.take()
    assert not batch.empty
    assert batch.first == [(1, 16, 0.25, "cafe")]
    assert [entry.logprob for entry in batch.logprobs[1]] == [-1.0, -2.0]
    assert batch.finished == [(1, FinishReason.STOP, ""), (2, FinishReason.ERROR, "broken")]
    assert outbox.take().empty


def asked(**changes: Any) -> Asked:
    params = {name: changes.pop(name) for name in list(changes) if name in SamplingParams.__slots__}
    base = Asked(
        number=1,
        request_id="r",
        model="m@1",
        choice=0,
        prompt_tokens=10,
        remaining=5.0,
        params=SamplingParams(**({"max_tokens": 8} | params)),
    )
    return dataclasses.replace(base, **changes)


def test_a_group_asks_for_the_largest_of_its_choices():
    demand = check_group([asked(), asked(number=2, choice=1, prompt_tokens=12, max_tokens=20)], INFO)
    assert (demand.prompt_tokens, demand.max_output_tokens, demand.choices) == (12, 20, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "other@1"}, Reason.MODEL_NOT_FOUND),
        ({"remaining": 0.0}, Reason.DEADLINE_EXCEEDED),
        ({"max_tokens": 0}, Reason.INVALID_REQUEST),
        ({"prompt_tokens": 0}, Reason.INVALID_REQUEST),
        ({"prompt_tokens": 100}, Reason.CONTEXT_LENGTH_EXCEEDED),
        ({"temperature": -1.0}, Reason.INVALID_REQUEST),
        ({"temperature": float("nan")}, Reason.INVALID_REQUEST),
        ({"top_p": 1.5}, Reason.INVALID_REQUEST),
        ({"min_p": 2.0}, Reason.INVALID_REQUEST),
        ({"repetition_penalty": -1.0}, Reason.INVALID_REQUEST),
        ({"presence_penalty": 99.0}, Reason.INVALID_REQUEST),
        ({"frequency_penalty": float("nan")}, Reason.INVALID_REQUEST),
        ({"resumed": 10}, Reason.INVALID_REQUEST),
        ({"min_tokens": 10_000}, Reason.INVALID_REQUEST),
        ({"bad_words": ((1,), ())}, Reason.INVALID_REQUEST),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(changes, reason):
    with pytest.raises(WeirError) as caught:
        check_group([asked(**changes)], INFO)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("field", "low", "high"), [(field, low, high) for field, (low, high) in SAMPLING_BOUNDS.items()]
)
def test_e5_a_value_that_no_engine_can_compute_with_is_refused_by_its_field(field, low, high):
    def check(value):
        check_group([asked(**{field: {5: value} if field == "logit_bias" else value})], INFO)

    check(low or 1e-38 if field == "top_p" else low)
    check(high)
    for value in (low - 1, high + 1, float("nan"), float("inf"), 1e-38 if field == "repetition_penalty" else -1e38):
        with pytest.raises(WeirError, match=field) as caught:
            check(value)
        assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, field)
    with pytest.raises(WeirError, match="top_p must be above 0"):
        check_group([asked(top_p=0.0)], INFO)


def test_a_simulated_engine_is_asked_for_no_bad_words():
    words = asked(bad_words=((5, 6),))
    check_group([words], INFO)
    with pytest.raises(WeirError, match="simulated engine") as caught:
        check_group([words], dataclasses.replace(INFO, simulated=True))
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "bad_words")


def test_a_simulated_engine_is_asked_for_no_structure():
    structured = asked(structure=Structure("regex", "[ab]"), resumed=9)
    check_group([structured], INFO)
    with pytest.raises(WeirError, match="simulated engine") as caught:
        check_group([structured], dataclasses.replace(INFO, simulated=True))
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "structured_output")


def test_choices_of_a_request_are_distinct_and_share_a_model():
    with pytest.raises(WeirError, match="same choice"):
        check_group([asked(), asked(number=2)], INFO)
    both = dataclasses.replace(INFO, models=("m@1", "n@1"))
    with pytest.raises(WeirError, match="share a model"):
        check_group([asked(), asked(number=2, choice=1, model="n@1")], both)


@pytest.mark.parametrize(
    ("registered", "local", "difference"),
    [
        ({"a": "AA"}, {"a": "aa"}, ""),
        ({"a": "aa"}, {"a": "bb"}, "a has another digest than registered"),
        ({"a": "aa", "b": "bb"}, {"a": "aa"}, "b is registered and missing here"),
        ({"a": "aa"}, {"a": "aa", "b": "bb"}, "b is here and not registered"),
    ],
)
def test_agreement_names_the_first_difference(registered, local, difference):
    assert disagreement(registered, local) == difference
