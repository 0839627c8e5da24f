"""What idempotency keys stand for, in SQLite and in PostgreSQL: one contract."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from services.records import answers
from services.records.answers import Answers, Claim, FullError, State
from services.records.store import Store
from tests.contract.test_records_store import postgres, store, url

__all__ = ["postgres", "store", "url"]
NOW, LEASE, LIFE = 1_793_527_200_000, 6_000, 86_400_000
KEY, BODY = b"k" * 32, b"b" * 16


@pytest.fixture
def kept(store: Store) -> Answers:
    return store.answers()


def claim(**more: Any) -> Claim:
    return Claim(**{"tenant": "acme", "key": KEY, "body": BODY, "holder": "g1", "lease": LEASE, "life": LIFE} | more)


def test_a_key_is_claimed_once_and_stands_for_its_answer(kept: Answers) -> None:
    assert kept.begin(claim(), NOW) == (State.BEGUN, b"")
    assert kept.begin(claim(holder="g2"), NOW + 1) == (State.RUNNING, b"")
    assert kept.begin(claim(holder="g2", body=b"o" * 16), NOW + 1) == (State.CONFLICT, b"")
    assert kept.begin(claim(holder="g2", tenant="tiny"), NOW + 1) == (State.BEGUN, b"")
    assert not kept.keep("acme", KEY, "g2", b"another's")
    assert kept.keep("acme", KEY, "g1", b"said")
    assert not kept.keep("acme", KEY, "g1", b"twice")
    for holder in ("g1", "g2"):
        assert kept.begin(claim(holder=holder), NOW + LIFE - 1) == (State.ENDED, b"said")
    assert kept.begin(claim(body=b"o" * 16), NOW + LIFE) == (State.BEGUN, b"")


def test_the_claim_of_who_is_gone_is_anothers_and_its_late_answer_nobodys(kept: Answers) -> None:
    kept.begin(claim(), NOW)
    assert kept.hold("g1", NOW + 2 * LEASE) == 1
    assert kept.begin(claim(holder="g2"), NOW + LEASE) == (State.RUNNING, b"")
    assert kept.begin(claim(holder="g2"), NOW + 2 * LEASE) == (State.BEGUN, b"")
    assert kept.hold("g1", NOW + 9 * LEASE) == 0
    assert not kept.keep("acme", KEY, "g1", b"late")
    kept.drop("acme", KEY, "g1")
    assert kept.keep("acme", KEY, "g2", b"said")
    kept.drop("acme", KEY, "g2")
    assert kept.begin(claim(), NOW + 2 * LEASE) == (State.ENDED, b"said")


def test_whose_caller_was_cut_off_is_taken_over_and_what_failed_stands_for_nothing(kept: Answers) -> None:
    kept.begin(claim(), NOW)
    assert kept.begin(claim(holder="g2", take_over=True), NOW + 1) == (State.BEGUN, b"")
    kept.drop("acme", KEY, "g2")
    assert kept.begin(claim(body=b"o" * 16), NOW + 2) == (State.BEGUN, b"")


def test_a_claim_that_is_held_outlives_its_life(kept: Answers) -> None:
    kept.begin(claim(life=1_000), NOW)
    assert kept.begin(claim(holder="g2"), NOW + 2_000) == (State.RUNNING, b"")
    assert kept.sweep(NOW + 2_000, most_bytes=10) == 0
    assert kept.sweep(NOW + LEASE, most_bytes=10) == 1


def test_a_tenants_keys_and_bytes_are_bounded_and_the_oldest_answers_go_first(
    kept: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_KEYS", 4)
    monkeypatch.setattr(answers, "MOST_RUNNING", 2)
    monkeypatch.setattr(answers, "MOST_BYTES", 20)
    keys = [bytes([number]) * 32 for number in range(8)]
    for number, key in enumerate(keys[:4]):
        kept.begin(claim(key=key), NOW + number)
        kept.keep("acme", key, "g1", b"x")
    kept.begin(claim(key=keys[4]), NOW + 4)
    assert kept.begin(claim(key=keys[1]), NOW + 5)[0] is State.ENDED
    assert kept.begin(claim(key=keys[0]), NOW + 5)[0] is State.BEGUN
    with pytest.raises(FullError):
        kept.begin(claim(key=keys[5]), NOW + 6)
    assert kept.begin(claim(tenant="tiny", key=keys[5]), NOW + 6)[0] is State.BEGUN
    kept.keep("acme", keys[4], "g1", b"x" * 19)
    monkeypatch.undo()
    assert [key for key in keys if kept.begin(claim(key=key), NOW + 7)[0] is State.ENDED] == [keys[3], keys[4]]


def test_the_oldest_of_all_go_where_there_is_too_much(kept: Answers) -> None:
    for number, tenant in enumerate(("a", "b", "c")):
        kept.begin(claim(tenant=tenant), NOW + number)
        kept.keep(tenant, KEY, "g1", bytes(10))
    assert kept.sweep(NOW + 3, most_bytes=20) == 1
    assert [kept.begin(claim(tenant=tenant), NOW + 3)[0] for tenant in "abc"] == [State.BEGUN, State.ENDED, State.ENDED]


def test_of_many_at_once_one_begins(kept: Answers) -> None:
    found: Counter[State] = Counter()
    start = threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        found[kept.begin(claim(holder=f"g{number}"), NOW)[0]] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {State.BEGUN: 1, State.RUNNING: 7}
