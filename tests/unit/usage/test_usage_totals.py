"""Sums over requests: each once; and books that are compared."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libs.usage import Counts, Fold, Used, read
from libs.usage.reconcile import Books, Delivered, Spent


def used(number: int, *, day: int = 1, **event: Any) -> Used:
    body = {"tenant": "acme", "outcome": "stop", "prompt_tokens": 3, "completion_tokens": 4, "spend_microusd": 5}
    record = {"id": f"r{number}", "time": f"2026-11-{day:02d}T10:00:00Z", "request": body | event}
    found = read(json.dumps(record, separators=(",", ":")).encode())
    assert found is not None
    return found


def total(fold: Fold) -> Counts:
    found = Counts()
    for counts in fold.sums.values():
        found.add(counts)
    return found


def test_a_request_is_counted_where_it_belongs() -> None:
    fold = Fold()
    event = {"key_id": "k", "model": "fast", "model_version": "fast@1", "queue_class": "paid", "operation": "chat"}
    fold.add(used(1, **event))
    fold.add(used(2, **event, cached_prompt_tokens=2))
    [(key, counts)] = fold.sums.items()
    assert key[1:] == ("acme", "k", "", "fast", "fast@1", "paid", "chat")
    assert key.hour * 3600 == 1_793_527_200  # 2026-11-01T10
    assert counts == Counts(requests=2, prompt=6, cached=2, completion=8, microusd=10)


@given(st.permutations(["unknown", "unknown again", "known"]))
def test_what_is_known_of_a_request_goes_before_what_is_not(order: list[str]) -> None:
    fold = Fold()
    for what in order:
        if what == "known":
            fold.add(used(1))
        else:
            fold.add(used(1, outcome="usage_unknown", at_most_tokens=100, prompt_tokens=0, completion_tokens=0))
    assert total(fold) == Counts(requests=1, prompt=3, completion=4, microusd=5)


def test_what_stays_unknown_is_counted_apart() -> None:
    fold = Fold()
    for _ in range(2):
        fold.add(used(1, outcome="usage_unknown", at_most_tokens=100))
    assert total(fold) == Counts(unknown=1, at_most=100)


def test_a_refused_request_used_nothing() -> None:
    fold = Fold()
    fold.add(used(1, outcome="rejected", prompt_tokens=0, completion_tokens=0, spend_microusd=0))
    assert total(fold) == Counts(refused=1)


def test_records_of_anything_else_are_no_usage_and_sealed_ones_are_read_by_their_header() -> None:
    assert read(b'{"admin":{"actor":"a"},"id":"x","time":"2026-11-01T00:00:00Z"}') is None
    names = b'{"class":"request","id":"r1","tenant":"acme","time":"2026-11-01T00:00:00Z",'
    sealed = read(names + b'"usage":{"prompt_tokens":7},"key":"2026-11/ab","sealed":"x"}')
    assert sealed is not None
    assert (sealed.id, sealed.event.tenant, sealed.event.prompt_tokens, sealed.sealed_by) == (
        "r1",
        "acme",
        7,
        "2026-11/ab",
    )


LEDGER = Spent("acme", "Asia/Kolkata", "2026-11-02", 5, "2026-11", 10)


def books(*records: Used, ledger: Spent = LEDGER) -> Books:
    made = Books({ledger.tenant: ledger})
    for each in records:
        made.add(each)
    return made


def named(made: Books, delivered: tuple[Delivered, ...] = (), gaps: tuple[Any, ...] = ()) -> list[tuple[str, str]]:
    return [(each.what, each.subject) for each in made.differences(delivered, gaps)]


def test_books_that_agree_have_no_differences() -> None:
    late = used(2)
    late.time = "2026-11-01T19:00:00Z"  # past midnight where the tenant is
    delivered = (Delivered("r1", 3, 4), Delivered("r2", 3, 4))
    assert named(books(used(1), late), delivered) == []


def test_every_difference_is_named() -> None:
    late = used(2)
    late.time = "2026-11-01T19:00:00Z"
    gone = used(3, outcome="usage_unknown", at_most_tokens=50)
    delivered = (Delivered("r1", 3, 9), Delivered("r3", 1, 1), Delivered("r4", 1, 1))
    found = named(books(used(1), late, late, gone), delivered, (("gateway/g", "missing", 4, 6),))
    assert found == [
        ("doubled", "r2"),
        ("unknown", "r3"),
        ("gap", "gateway/g"),
        ("tokens", "r1"),
        ("missing", "r4"),
        ("spend_day", "acme"),
        ("spend_month", "acme"),
    ]


def test_a_request_that_another_gateway_answered_is_no_second_one() -> None:
    lost = used(1, outcome="gateway_lost", prompt_tokens=0, completion_tokens=0, spend_microusd=0)
    for records in ((lost, used(1)), (used(1), lost)):  # the killed one's next life may be late
        assert named(books(*records, used(2, day=2)), (Delivered("r1", 3, 4), Delivered("r2", 3, 4))) == []
        fold = Fold()
        for each in records:
            fold.add(each)
        assert total(fold) == Counts(requests=1, prompt=3, completion=4, microusd=5)
    part = used(1, outcome="gateway_lost")
    assert ("doubled", "r1") in named(books(part, used(1)))


def test_a_request_that_several_refused_before_it_was_served_is_one() -> None:
    refused = used(1, outcome="rejected_no_capacity", prompt_tokens=0, completion_tokens=0, spend_microusd=0)
    delivered = (Delivered("r1", 3, 4), Delivered("r2", 3, 4))
    for records in ((refused, refused, used(1)), (used(1), refused)):
        assert named(books(*records, used(2, day=2)), delivered) == []
    assert ("doubled", "r1") in named(books(refused, used(1), used(1)))


def test_what_is_unknown_may_be_in_the_ledger_up_to_what_was_reserved() -> None:
    gone = used(3, outcome="usage_unknown", at_most_tokens=50, at_most_microusd=5, spend_microusd=0)
    assert named(books(used(1), gone, ledger=LEDGER)) == [("unknown", "r3")]
    assert named(books(used(1), gone, ledger=LEDGER._replace(month_microusd=11))) == [
        ("unknown", "r3"),
        ("spend_month", "acme"),
    ]


def prediction(number: int, **event: Any) -> Used:
    return used(number, operation="predict", prompt_tokens=0, completion_tokens=0, **event)


def test_predictions_are_told_apart_and_their_rows_added_up() -> None:
    fold = Fold()
    fold.add(used(1))
    fold.add(prediction(2, outcome="ok", rows=16))
    fold.add(prediction(3, outcome="rejected", spend_microusd=0))
    fold.add(prediction(4, outcome="predictor_lost", spend_microusd=0))
    fold.add(prediction(5, outcome="usage_unknown", at_most_rows=100))
    counts = total(fold)
    assert (counts.requests, counts.predictions, counts.refused, counts.rows) == (2, 1, 1, 16)
    assert (counts.unknown, counts.at_most, counts.at_most_rows) == (1, 0, 100)


def test_of_a_lease_that_nobody_settled_only_what_no_record_tells_is_unknown() -> None:
    first, late = (prediction(number, outcome="ok", rows=16, lease="rows-a-1") for number in (1, 2))
    gone = used(0, request_id="rows-a-1", outcome="usage_unknown", at_most_rows=100)
    fold, books = Fold(), Books()
    for each in (first, gone, late, prediction(3, outcome="ok", rows=8, lease="rows-a-2")):
        fold.add(each)
        books.add(each)
    counts = total(fold)
    assert (counts.rows, counts.unknown, counts.at_most_rows) == (40, 1, 68)
    [found] = books.differences([], [])
    assert "at most 68 rows" in found.detail


def test_rows_that_differ_are_named_and_what_a_killed_predictor_left_is_no_double() -> None:
    books = Books()
    for each in (
        prediction(1, outcome="ok", rows=16),
        prediction(2, outcome="predictor_lost"),
        prediction(2, outcome="ok", rows=3),
        prediction(3, outcome="usage_unknown", at_most_rows=100),
    ):
        books.add(each)
    found = books.differences([Delivered("r1", 0, 0, 15), Delivered("r2", 0, 0, 3)], [])
    assert [(each.what, each.subject) for each in found] == [("unknown", "r3"), ("rows", "r1")]
    assert "at most 100 rows" in found[0].detail
    assert "delivered 15 rows, logged 16" in found[1].detail
