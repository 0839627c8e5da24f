"""What idempotency keys stand for, and which of them are forgotten first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.errors import Reason, WeirError
from libs.idempotency import MOST_OF_TENANT, MOST_RUNNING, Keyed

BODY, OTHER = b"b" * 16, b"o" * 16


def keyed(most_size: int = 1000) -> Keyed[str]:
    return Keyed(most_size=most_size, life=100.0)


def ended(of: Keyed[str], tenant: str, key: str, now: float = 0.0, size: int = 0) -> None:
    entry = of.put(tenant, key, BODY, key, now)
    of.grew(entry, size)
    of.ended(entry, keep=True)


def test_a_key_is_its_tenants_and_stands_for_one_request() -> None:
    known = keyed()
    known.put("acme", "k", BODY, "answer", 0.0)
    assert known.find("acme", "k", BODY) == "answer"
    assert known.find("globex", "k", OTHER) is None
    with pytest.raises(WeirError) as caught:
        known.find("acme", "k", OTHER)
    assert (caught.value.reason, caught.value.limit) == (Reason.IDEMPOTENCY_CONFLICT, "idempotency_key")


def test_what_failed_stands_for_nothing() -> None:
    known = keyed()
    entry = known.put("acme", "k", BODY, "answer", 0.0)
    known.ended(entry, keep=False)
    assert known.find("acme", "k", OTHER) is None
    assert (len(known), known.size) == (0, 0)


def test_an_answer_is_kept_for_its_life_and_no_longer() -> None:
    known = keyed()
    ended(known, "acme", "old")
    ended(known, "acme", "new", now=50.0)
    known.expire(100.0)
    assert known.find("acme", "old", BODY) == "old"
    known.expire(100.5)
    assert known.find("acme", "old", BODY) is None
    assert known.find("acme", "new", BODY) == "new"


def test_what_runs_for_long_keeps_no_others() -> None:
    known = keyed()
    running = known.put("acme", "long", BODY, "long", 0.0)
    ended(known, "globex", "old", now=1.0, size=10)
    known.expire(101.5)
    assert known.find("globex", "old", BODY) is None
    assert known.find("acme", "long", BODY) == "long"
    known.ended(running, keep=True)
    known.expire(101.5)
    assert (len(known), known.size) == (0, 0)


def test_a_tenant_with_too_many_loses_its_own_oldest() -> None:
    known = keyed()
    ended(known, "globex", "k")
    for number in range(MOST_OF_TENANT + 1):
        ended(known, "acme", str(number))
    assert known.find("acme", "0", BODY) is None
    assert known.find("acme", "1", BODY) == "1"
    assert known.find("globex", "k", BODY) == "k"


def test_too_many_that_run_are_refused_and_nobody_else_is() -> None:
    known = keyed()
    for number in range(MOST_RUNNING):
        known.put("acme", str(number), BODY, "", 0.0)
    with pytest.raises(WeirError) as caught:
        known.put("acme", "more", BODY, "", 0.0)
    assert (caught.value.reason, caught.value.limit) == (Reason.REJECTED_QUEUE_FULL, "idempotency_keys")
    assert caught.value.retry_after
    known.put("globex", "more", BODY, "", 0.0)


def test_answers_are_bounded_in_size_and_what_runs_stays() -> None:
    known = keyed(most_size=100)
    ended(known, "acme", "a", size=60)
    running = known.put("globex", "b", BODY, "b", 0.0)
    known.grew(running, 60)
    known.put("acme", "c", BODY, "c", 0.0)
    assert known.find("acme", "a", BODY) is None
    assert known.size == 60
    known.grew(running, 60)
    with pytest.raises(WeirError) as caught:
        known.put("acme", "d", BODY, "", 0.0)
    assert (caught.value.reason, caught.value.limit) == (Reason.REJECTED_QUEUE_FULL, "idempotency_bytes")


def test_answers_without_a_word_take_room_too() -> None:
    known: Keyed[str] = Keyed(most_size=1000, life=100.0, weight=100)
    for number in range(50):
        ended(known, f"tenant-{number}", "k")
    assert (len(known), known.size) == (10, 1000)


def test_a_tenant_that_fills_the_room_loses_its_own_and_nobody_elses() -> None:
    known = keyed()
    ended(known, "globex", "k", size=100)
    for number in range(30):
        ended(known, "acme", str(number), size=100)
    assert known.find("globex", "k", BODY) == "k"
    assert known.find("acme", "29", BODY) == "29"
    assert known.size <= 1100


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 40), st.booleans(), st.booleans())))
def test_sizes_and_counts_add_up(steps: list[tuple[str, int, int, bool, bool]]) -> None:
    known, held = keyed(most_size=100), []
    for now, (tenant, key, size, end, keep) in enumerate(steps):
        if known.find(tenant, str(key), BODY) is None:
            try:
                entry = known.put(tenant, str(key), BODY, "", float(now))
            except WeirError:
                continue
            known.grew(entry, size)
            held.append(entry)
        if end and held:
            known.ended(held.pop(0), keep=keep)
        known.expire(float(now) - 95)
        assert known.size == sum(entry.size for entry in known._all.values()) == sum(known._sizes.values())
        assert known._sizes.keys() == known._of.keys()
        assert sum(known._running.values()) == len(held)
        assert len(known) == sum(map(len, known._of.values()))


@pytest.mark.parametrize("key", ["", "x" * 256, "ä", "a\nb", "\x7f"])
def test_a_key_is_spelt_in_printable_ascii(key: str) -> None:
    with pytest.raises(WeirError) as caught:
        keyed().find("acme", key, BODY)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "idempotency_key")
    assert keyed().find("acme", "x" * 255, BODY) is None
