"""Leases that nobody settled: told once they are forgotten, and no others."""

from __future__ import annotations

from weir.audit.v1 import audit_pb2

from libs.clock import ManualClock
from libs.quota import Ask, Ledger
from services.ratelimit.lapsed import Lapsed

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
    assert ledger.forget(now + 300 * SECOND) == []


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
    for owns in (False, True):
        Lapsed(put.append, owns=lambda _, owns=owns: owns, source="ratelimit/r-0", clock=ManualClock())(lapsed)
    [record] = put
    assert (record.id, record.source) == ("unknown-r1/5f", "ratelimit/r-0")
    assert record.request.outcome == "usage_unknown"
    assert (record.request.request_id, record.request.tenant) == ("r1", "acme")
    assert (record.request.at_most_tokens, record.request.at_most_microusd) == (100, 7)
    assert (record.request.prompt_tokens, record.request.completion_tokens) == (0, 0)
