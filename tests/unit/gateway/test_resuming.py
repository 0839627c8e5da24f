"""What is cut off an answer that is computed anew, and how often that is free."""

from __future__ import annotations

import json
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from libs.cursor import Cursor, Keyring, Origin, Position, Trail
from libs.errors import Reason, WeirError
from services.gateway.openai.responses import DONE, HEARTBEAT, StreamEncoder
from services.gateway.policy.events import ChoiceUpdate, Finish
from services.gateway.policy.resuming import Remainder, Resumptions
from services.gateway.request import Accepted

ORIGIN = Origin(request_id="r" * 8, created=1, model_version="m@1", seed=1, max_tokens=9, choices=1)


def had(text: str, *, ended: bool = False) -> Position:
    return Position(len(text), crc32(text.encode("utf-8", "surrogatepass")), 0, ended)


def chunks(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


@given(text=st.text(max_size=30), at=st.integers(0, 30), cuts=st.lists(st.integers(0, 30)))
def test_the_rest_is_told_once_however_it_comes(text: str, at: int, cuts: list[int]) -> None:
    remainder, told = Remainder([had(text[:at])]), ""
    for piece in chunks(text, cuts):
        told += remainder.cut(0, piece, None, None).text
    last = remainder.cut(0, "", None, Finish.STOP)
    assert told == text[at:]
    assert (last.text, last.news) == ("", True)


@given(
    text=st.text(min_size=1, max_size=30),
    other=st.text(max_size=40),
    cuts=st.lists(st.integers(0, 40)),
    finish=st.sampled_from([Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER]),
)
def test_no_word_of_another_answer_is_told(text: str, other: str, cuts: list[int], finish: Finish) -> None:
    remainder, told, caught = Remainder([had(text)]), "", None
    try:
        for piece in chunks(other, cuts):
            told += remainder.cut(0, piece, None, None).text
        remainder.cut(0, "", None, finish)
    except WeirError as error:
        caught = error.reason
    if other.startswith(text):
        assert (told, caught) == (other[len(text) :], None)
    else:
        assert (told, caught) == ("", Reason.CURSOR_GONE)


def test_a_choice_that_had_ended_tells_nothing_and_must_end_there() -> None:
    remainder = Remainder([had("ab", ended=True)])
    assert remainder.cut(0, "ab", None, Finish.STOP) == ("", None, False)
    with pytest.raises(WeirError):
        Remainder([had("ab", ended=True)]).cut(0, "abc", None, None)


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR])
def test_who_is_cut_while_it_is_computed_anew_was_not_another_answer(finish: Finish) -> None:
    assert Remainder([had("abc")]).cut(0, "a", None, finish) == ("", None, True)


def test_computing_anew_is_free_so_often_and_what_was_billed_is_known() -> None:
    known = Resumptions(most=2, answers=2)
    cursor = Cursor(origin=ORIGIN, tokens=5, positions=(had("a"),))
    assert known.begin("acme", cursor) == 5
    known.ended("acme", ORIGIN.request_id, 8)
    assert known.begin("acme", cursor) == 8
    assert known.begin("acme", cursor) is None
    assert known.begin("globex", cursor) == 5
    for number in range(9):
        known.ended("acme", str(number), 1)
    assert len(known) == 2


def _encoder() -> StreamEncoder:
    accepted = Accepted(
        request_id="r" * 8,
        trace_id="",
        model_version="m@1",
        arm="",
        prompt_tokens=1,
        simulated=False,
        zone="",
        created=1,
        origin=ORIGIN,
    )
    trail = Trail(Keyring([b"k" * 32]), ORIGIN, tenant="acme", body=b"b")
    return StreamEncoder(accepted, chat=True, include_usage=False, trail=trail)


def test_a_stream_that_another_version_went_on_with_takes_its_id_back() -> None:
    encoder = _encoder()
    assert encoder.update(ChoiceUpdate(0, "a"), 1).startswith(b"id: ")
    assert encoder.update(ChoiceUpdate(0, "b"), -1).startswith(b"id:\ndata: ")


def test_the_official_client_reads_over_heartbeats_wherever_they_come() -> None:
    encoder = _encoder()
    events = [HEARTBEAT, encoder.update(ChoiceUpdate(0, "a"), 1), HEARTBEAT, HEARTBEAT]
    events += [encoder.update(ChoiceUpdate(0, "b"), 2), HEARTBEAT, DONE]
    read = [event.data for event in SSEDecoder().iter_bytes(iter(events))]
    assert [json.loads(data)["choices"][0]["delta"]["content"] for data in read[:-1]] == ["a", "b"]
    assert read[-1] == "[DONE]"
