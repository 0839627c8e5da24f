"""The books of a soak: every fault shows in its figure, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.soak.book import (
    CALL,
    EMBED,
    PREDICT,
    ROWS,
    STREAM,
    Entry,
    Left,
    Reference,
    Resident,
    Seen,
    Slow,
    missed,
    repeated,
    verdict,
)

TEXT = "the weir lets through what the river below can carry"
TOKENS = TEXT.split(" ")
ENDS = tuple(len(" ".join(TOKENS[: number + 1])) for number in range(len(TOKENS)))
REFERENCES = {0: Reference(TEXT, ENDS, "[1.0]", "[[0.5]]")}
NOTHING = Left(slots=0, blocks=0, leases=0, audit_verifies=True, all_ready=True)


def whole(request: str = "r1", **more: object) -> Seen:
    return Seen(
        **{
            "kind": STREAM,
            "question": 0,
            "requests": [request],
            "text": TEXT,
            "begun": True,
            "done": True,
            "told_tokens": len(TOKENS),
        }
        | more
    )


def entry(request: str = "r1", tokens: int = len(TOKENS)) -> Entry:
    return Entry(request, "soak", "length", tokens, cost=1)


def figures(seen: list[Seen], entries: list[Entry], left: Left = NOTHING) -> dict[str, float]:
    return verdict(seen, entries, REFERENCES, left).figures


def test_a_whole_answer_that_is_recorded_once_misses_nothing() -> None:
    seen = [whole(), whole("r2", kind=CALL), whole("r3", kind=EMBED, text="[1.0]")]
    told = figures(seen, [entry(), entry("r2"), entry("r3", 0)])
    assert missed(told) == []
    assert (told["requests"], told["finished"]) == (3, 3)


def test_a_token_that_came_twice_is_told_from_one_that_is_another() -> None:
    twice = " ".join([*TOKENS[:3], TOKENS[2], *TOKENS[3:]])
    told = figures([whole(text=twice)], [entry()])
    assert (told["wrong_texts"], told["doubled_tokens"] > 0) == (1, True)
    other = TEXT.replace("river", "delta")
    told = figures([whole(text=other)], [entry()])
    assert (told["wrong_texts"], told["doubled_tokens"]) == (1, 0)


def test_a_finished_answer_that_lacks_its_end_is_wrong_and_a_cut_one_is_not() -> None:
    part = TEXT[: ENDS[3]]
    assert figures([whole(text=part)], [entry()])["wrong_texts"] == 1
    cut = whole(text=part, done=False, failure="WORKER_LOST")
    told = figures([cut], [entry(tokens=4)])
    assert (told["wrong_texts"], told["cut"], told["failed"], told["usage_error_tokens"]) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    ("entries", "name"),
    [([], "records_lost"), ([entry(), entry()], "records_doubled"), ([entry(tokens=7)], "usage_error_tokens_finished")],
)
def test_a_record_that_is_lost_doubled_or_of_other_tokens_shows(entries: list[Entry], name: str) -> None:
    assert name in missed(figures([whole()], entries))


def test_what_the_edge_sent_again_is_recorded_once_and_what_was_delivered_twice_is_not() -> None:
    vanished, lost = (Entry("r1", "soak", "gateway_lost", tokens, cost=0) for tokens in (0, 1))
    assert missed(figures([whole()], [vanished, entry()])) == []
    assert "records_doubled" in missed(figures([whole()], [lost, entry()]))


def test_what_is_left_over_shows() -> None:
    left = Left(slots=1, blocks=2, leases=3, audit_verifies=False, all_ready=False, spend_off=-1)
    told = figures([whole()], [entry()], left)
    assert set(missed(told)) == {"stuck_slots", "kv_blocks_leaked", "quota_leaks", "audit_verifies", "all_ready_at_end"}
    assert told["quota_leaks"] == 4


def test_a_request_that_never_began_fails_and_one_that_was_sent_again_does_not() -> None:
    refused = Seen(kind=STREAM, question=0, failure="503 dependency_unavailable")
    told = figures([refused, whole(reconnected=True)], [entry()])
    assert (told["failed_pct"], told["reconnected"]) == (50.0, 1)
    assert "failed_pct" in missed(told)


def test_resumption_is_measured_where_there_is_something_to_resume_by() -> None:
    cut = whole(text=TEXT[: ENDS[2]], done=False, failure="ReadError")
    told = verdict([cut], [entry(tokens=3)], REFERENCES, NOTHING)
    assert "resumed_pct" in told.unmeasured
    told = verdict(
        [cut, whole("r2", resumable=True, resumed=True)], [entry(tokens=3), entry("r2")], REFERENCES, NOTHING
    )
    assert told.figures["resumed_pct"] == 50.0


def test_what_a_stream_was_billed_before_and_after_it_went_on_is_what_came() -> None:
    parts = whole(requests=["r1", "r2"], resumable=True, resumed=True, told_tokens=6)
    told = verdict([parts], [entry(tokens=4), entry("r2", 6)], REFERENCES, NOTHING).figures
    assert (told["usage_error_tokens_finished"], told["resumed_pct"], missed(told)) == (0, 100.0, [])
    assert figures([parts], [entry(tokens=4), entry("r2", 7)])["usage_error_tokens"] == 1
    assert figures([parts], [entry(tokens=4)])["records_lost"] == 1


@given(at=st.integers(1, len(TOKENS)), length=st.integers(1, 3))
def test_whatever_is_repeated_is_found(at: int, length: int) -> None:
    start = max(0, at - length)
    text = " ".join([*TOKENS[:at], *TOKENS[start:at], *TOKENS[at:]])
    assert 0 < repeated(TEXT, text) <= len(" ".join(TOKENS[start:at])) + 1
    assert repeated(TEXT, " ".join(TOKENS[:at])) == 0


def test_a_prediction_is_the_undisturbed_one_or_says_that_it_is_not_and_its_rows_are_recorded() -> None:
    right, other = whole(kind=PREDICT, text="[[0.5]]"), whole(kind=PREDICT, text="[[0.6]]")
    record = Entry("r1", "soak", "stop", 0, cost=1, rows=ROWS)
    assert missed(figures([right], [record])) == []
    assert figures([other], [record])["wrong_texts"] == 1
    other.degraded = True
    assert figures([other], [record])["wrong_texts"] == 0
    assert "usage_error_rows" in missed(figures([right], [Entry("r1", "soak", "stop", 0, cost=1, rows=ROWS + 1)]))


def test_what_a_slow_service_adds_is_told_from_what_others_do() -> None:
    at_peace = [whole(f"p{number}", at=number, first=0.1) for number in range(20)]
    slow = whole("s", at=31.0, first=2.6)
    records = [entry(each.requests[0]) for each in (*at_peace, slow)]
    seen = [*at_peace, slow]

    def added(*disturbed: Slow) -> dict[str, float]:
        return verdict(seen, records, REFERENCES, NOTHING, disturbed).figures

    of_limiter = added(Slow(30.0, 35.0, "ratelimit"))
    assert of_limiter["added_p99_ms"] == of_limiter["added_p99_ms_ratelimit"] == 2500
    assert missed(of_limiter) == ["added_p99_ms"]
    of_worker = added(Slow(30.0, 35.0, "worker"))
    assert "added_p99_ms" not in of_worker
    assert of_worker["added_p99_ms_worker"] == 2500
    assert "added_p99_ms" not in added(Slow(30.0, 35.0))


def test_a_process_that_grows_after_it_has_settled_shows_and_one_that_starts_does_not() -> None:
    def grown(*looks: tuple[float, int]) -> list[str]:
        resident = [Resident("audit", 7, age, size) for age, size in looks]
        return missed(verdict([whole()], [entry()], REFERENCES, NOTHING, (), resident).figures)

    assert grown((5.0, 10), (61.0, 100), (130.0, 104)) == []
    assert grown((61.0, 100), (130.0, 106)) == ["rss_growth_pct"]
    assert grown((5.0, 10), (61.0, 100)) == []
