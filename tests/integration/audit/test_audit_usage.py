"""Usage out of a running audit service: added up once, again after restarts, by what is sealed, beside other books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from weir.audit.v1 import audit_pb2

from libs.errors import Reason, WeirError
from tests.support.audit import audit_service, connect, record


def request(number: int, **event: Any) -> audit_pb2.Record:
    made = record(number)
    for name, value in {"completion_tokens": 4, "spend_microusd": 10, **event}.items():
        setattr(made.request, name, value)
    return made


def counts(answer: audit_pb2.UsageResponse) -> dict[tuple[str, ...], tuple[int, int, int]]:
    return {tuple(row.values): (row.requests, row.completion_tokens, row.spend_microusd) for row in answer.rows}


async def test_usage_is_added_up_once_and_goes_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.audit.usage._SAVE_EVERY", 3)
    by_tenant = audit_pb2.UsageRequest(by=["tenant"])
    async with audit_service(tmp_path, segment_bytes=1500) as audit, connect(audit.port) as link:
        for number in range(10):
            await link.append(request(number))
            await link.append(request(number))  # again, as after a lost answer
        assert counts(await audit.stub.Usage(by_tenant, timeout=20)) == {("acme",): (10, 40, 100)}
        await link.append(request(10))
        assert counts(await audit.stub.Usage(by_tenant, timeout=20)) == {("acme",): (11, 44, 110)}
        reader = audit.service._usage
        assert reader._saved > 11 - 3
    async with audit_service(tmp_path, segment_bytes=1500) as audit, connect(audit.port) as link:
        await link.append(request(11, tenant="tiny"))
        answer = await audit.stub.Usage(by_tenant, timeout=20)
        assert counts(answer) == {("acme",): (11, 44, 110), ("tiny",): (1, 4, 10)}
        only = audit_pb2.UsageRequest(tenant="tiny", by=["day", "model"], first_day="2027-01-15", last_day="2027-01-15")
        assert counts(await audit.stub.Usage(only, timeout=20)) == {("2027-01-15", ""): (1, 4, 10)}
        only.first_day = "2027-01-16"
        assert counts(await audit.stub.Usage(only, timeout=20)) == {}


async def test_sums_of_another_log_are_made_anew(tmp_path: Path) -> None:
    async with audit_service(tmp_path / "a") as audit, connect(audit.port) as link:
        for number in range(4):
            await link.append(request(number))
        await audit.service._usage.keep()
    state = (tmp_path / "a" / "state" / "usage.state").read_bytes()
    for forged in (state, b"\x01", b""):
        root = tmp_path / forged.hex()[:9]
        (root / "state").mkdir(parents=True)
        (root / "state" / "usage.state").write_bytes(forged)
        async with audit_service(root) as audit, connect(audit.port) as link:
            for number in range(6):
                await link.append(request(number, tenant="other"))
            answer = await audit.stub.Usage(audit_pb2.UsageRequest(by=["tenant"]), timeout=20)
            assert counts(answer) == {("other",): (6, 24, 60)}


async def test_users_are_sealed_and_their_sums_are_kept_nowhere(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for number, user in enumerate(["jane", "joe", "jane"]):
            await link.append(request(number, user=user))
        by_user = audit_pb2.UsageRequest(by=["user"], tenant="acme")
        assert counts(await audit.stub.Usage(by_user, timeout=20)) == {("jane",): (2, 8, 20), ("joe",): (1, 4, 10)}
        await audit.service._usage.keep()
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"jane" not in path.read_bytes()


async def test_a_dimension_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit:
        for by in (["colour"], ["day", "day"]):
            with pytest.raises(WeirError) as refused:
                await audit.stub.Usage(audit_pb2.UsageRequest(by=by), timeout=20)
            assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, "by")


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
