"""Leases that nobody settled: told once they are forgotten, and no others; recorded once, whoever is killed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.audit.v1 import audit_pb2

from libs.clock import ManualClock
from libs.quota import Ask, Ledger, Logged, Replica
from services.ratelimit.lapsed import Lapsed
from services.ratelimit.policy.recovery import Frame, restore

SECOND = 1_000_000_000


def reserved(ledger: Ledger, name: str, now: int) -> None:
    ask = Ask("acme", "weir-fast", name, tokens=100, version="weir-fast@1", spend=7, holder="gateway-0/a")
    ledger.reserve(ask, lease_ns=20 * SECOND, now=now)


def test_a_lease_that_nobody_settles_is_told_when_it_is_forgotten() -> None:
    ledger, now = Ledger(settled_retention_ns=60 * SECOND), SECOND
    for name in ("settled", "late", "gone"):
        reserved(ledger, name, now)
    ledger.settle("acme", "weir-fast", "settled", 5, now)
    now += 30 * SECOND
    assert ledger.expire(now) == 2
    ledger.settle("acme", "weir-fast", "late", 17, now + SECOND)  # its gateway's next life has found it in its journal
    assert ledger.forget(now + 59 * SECOND) == []
    [((tenant, request_id), charge)] = ledger.forget(now + 62 * SECOND)
    assert (tenant, request_id, charge.tokens, charge.spend) == ("acme", "gone", 100, 7)
    assert ledger.forget(now + 63 * SECOND) == [(("acme", "gone"), charge)]  # until there is a record
    ledger.recorded([("acme", "gone")])
    assert ledger.forget(now + 64 * SECOND) == []


def test_more_than_are_told_at_once_are_counted() -> None:
    ledger, many = Ledger(settled_retention_ns=60 * SECOND), 4100
    for number in range(many):
        reserved(ledger, str(number), SECOND)
    while ledger.end_held_by("gateway-0/a", SECOND):
        pass
    told = ledger.forget(100 * SECOND)
    assert len(told) < many
    assert len(told) + ledger.untold == many


def test_its_record_names_the_most_that_it_can_have_used() -> None:
    ledger, put = Ledger(settled_retention_ns=60 * SECOND), list[audit_pb2.Record]()
    reserved(ledger, "r1/5f", SECOND)
    ledger.end_held_by("gateway-0/a", 2 * SECOND)
    lapsed = ledger.forget(100 * SECOND)
    for owns, full in ((False, False), (True, True), (True, False)):
        lapse = Lapsed(
            put.append,
            full=lambda full=full: full,  # type: ignore[misc]
            owns=lambda _, owns=owns: owns,  # type: ignore[misc]
            source="ratelimit/r-0",
            clock=ManualClock(),
        )
        assert list(lapse(lapsed)) == ([("acme", "r1/5f")] if owns and not full else [])
    [record] = put
    assert (record.id, record.source) == ("unknown-r1/5f", "ratelimit/r-0")
    assert record.request.outcome == "usage_unknown"
    assert (record.request.request_id, record.request.tenant) == ("r1", "acme")
    assert (record.request.at_most_tokens, record.request.at_most_microusd) == (100, 7)
    assert (record.request.prompt_tokens, record.request.completion_tokens) == (0, 0)


class Limiter:
    """A replica, what its disk holds, and the records that it has made."""

    def __init__(self, name: str, life: str = "1") -> None:
        ledger = Ledger(part=(name, life), settled_retention_ns=60 * SECOND, track_changes=True)
        self.replica, self.ledger = Replica(ledger, keep_log=True), ledger
        self.frames = list[Frame]()
        self.owns = True
        self.records = list[str]()
        self._lapsed = Lapsed(
            lambda record: self.records.append(record.id), owns=lambda _: self.owns, source=name, clock=ManualClock()
        )

    def tick(self, now: int) -> Logged | None:
        """As its keeper does, to what is on the disk then; returns what others hear."""
        self.ledger.expire(now)
        self.ledger.recorded(self._lapsed(self.ledger.forget(now)))
        logged = self.replica.flush(now)
        if entries := self.replica.take_log():
            self.frames.append(Frame(now, log=tuple(entries)))
        return logged

    def hear(self, logged: Logged | None, now: int) -> None:
        if logged is not None:
            self.replica.follow(logged, now)

    def killed(self, now: int) -> Limiter:
        """Its next life, with what was on the disk."""
        again = Limiter(self.ledger.part[0], life=str(now))
        restore(again.replica, self.frames, now=now, wall_now=now)
        again.frames = list(self.frames)
        return again


@settings(deadline=None, max_examples=40)
@given(
    ends=st.booleans(),
    kills=st.lists(st.integers(1, 400), max_size=5, unique=True),
)
def test_a_limiter_that_is_killed_again_and_again_makes_one_record(ends: bool, kills: list[int]) -> None:
    limiter, records = Limiter("a"), list[str]()
    reserved(limiter.ledger, "r1/5f", SECOND)
    limiter.tick(SECOND)
    if ends:
        limiter.ledger.end_held_by("gateway-0/a", 2 * SECOND)
    for second in range(2, 1000):
        limiter.tick(second * SECOND)
        if second in kills:
            records += limiter.records
            limiter = limiter.killed(second * SECOND)
    assert records + limiter.records == ["unknown-r1/5f"]


def test_a_limiter_that_was_away_for_long_records_what_ended_meanwhile() -> None:
    limiter = Limiter("a")
    reserved(limiter.ledger, "r1/5f", SECOND)
    limiter.tick(SECOND)
    limiter = limiter.killed(100_000 * SECOND)
    for second in range(100_000, 100_200):
        limiter.tick(second * SECOND)
    assert limiter.records == ["unknown-r1/5f"]


@pytest.mark.parametrize("dies", [0, 40, 81, 82, 83])
def test_whoever_speaks_for_the_tenant_may_die_at_any_time(dies: int) -> None:
    """The other one does so then, and not what was done."""
    one, other = Limiter("a"), Limiter("b")
    other.owns = False
    reserved(one.ledger, "r1/5f", SECOND)
    for second in range(1, 400):
        now = second * SECOND
        if second - 1 < dies or second == 1:
            other.hear(one.tick(now), now)
        elif second > dies + 30:  # as long as it takes until everybody knows who has died
            other.owns = True
        other.tick(now)
    assert one.records + other.records == ["unknown-r1/5f"]


def test_what_is_settled_after_all_leaves_no_record() -> None:
    """Its gateway's next life comes after it was forgotten, and before anybody could make a record."""
    ledger = Ledger(settled_retention_ns=60 * SECOND)
    reserved(ledger, "late", SECOND)
    ledger.end_held_by("gateway-0/a", 2 * SECOND)
    assert len(ledger.forget(100 * SECOND)) == 1
    ledger.settle("acme", "weir-fast", "late", 17, 101 * SECOND)
    assert ledger.forget(102 * SECOND) == []
