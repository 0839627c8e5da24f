"""A running audit service holds its log against other books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weir.audit.v1 import audit_pb2

from tests.support.audit import audit_service, connect, record


def request(number: int, **event: Any) -> audit_pb2.Record:
    made = record(number)
    for name, value in {"completion_tokens": 4, "spend_microusd": 10, **event}.items():
        setattr(made.request, name, value)
    return made


async def test_books_that_agree_and_books_that_do_not(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for number in range(3):
            await link.append(request(number))
        lost = record(9)
        lost.id, lost.request.outcome, lost.request.at_most_tokens = "unknown-r9", "usage_unknown", 50
        spend = audit_pb2.LedgerSpend(
            tenant="acme", day="2027-01-15", day_microusd=30, month="2027-01", month_microusd=30
        )
        delivered = [audit_pb2.Delivered(request_id=f"r{n}", prompt_tokens=3, completion_tokens=4) for n in range(3)]
        books = audit_pb2.ReconcileRequest(ledger=[spend], delivered=delivered)
        answer = await audit.stub.Reconcile(books, timeout=20)
        assert (list(answer.differences), answer.requests) == ([], 3)
        await link.append(lost)
        books.ledger[0].day_microusd = 31
        books.delivered[0].completion_tokens = 5
        answer = await audit.stub.Reconcile(books, timeout=20)
        assert [(each.what, each.subject) for each in answer.differences] == [
            ("unknown", "r9"),
            ("tokens", "r0"),
            ("spend_day", "acme"),
        ]
