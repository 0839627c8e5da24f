"""The store of records beside a real audit service: what is in the log can be asked for, once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2

from libs.errors import Reason, WeirError
from tests.support.audit import audit_service, connect, record
from tests.support.records import records_service

BY_TENANT = records_pb2.UsageRequest(by=["tenant"])


def request(number: int, **event: Any) -> audit_pb2.Record:
    made = record(number)
    for name, value in {"completion_tokens": 4, "spend_microusd": 10, **event}.items():
        setattr(made.request, name, value)
    return made


def counts(answer: records_pb2.UsageResponse) -> dict[tuple[str, ...], tuple[int, int, int]]:
    return {tuple(row.values): (row.requests, row.completion_tokens, row.spend_microusd) for row in answer.rows}


async def test_what_is_in_the_log_is_in_the_sums_once_and_goes_on_after_restarts(tmp_path: Path) -> None:
    async with audit_service(tmp_path, segment_bytes=1500) as audit, connect(audit.port) as link:
        async with records_service(tmp_path / "records", audit.port) as records:
            for number in range(10):
                await link.append(request(number))
                await link.append(request(number))  # again, as after a lost answer
            assert counts(await records.stub.Usage(BY_TENANT, timeout=20)) == {("acme",): (10, 40, 100)}
        await link.append(request(10, tenant="tiny", model="m"))
        async with records_service(tmp_path / "records", audit.port) as records:
            answer = await records.stub.Usage(BY_TENANT, timeout=20)
            assert counts(answer) == {("acme",): (10, 40, 100), ("tiny",): (1, 4, 10)}
            only = records_pb2.UsageRequest(tenant="tiny", by=["hour", "model"])
            assert counts(await records.stub.Usage(only, timeout=20)) == {("2027-01-15T08", "m"): (1, 4, 10)}
            only.since.seconds = 1_800_000_000 + 3600
            assert counts(await records.stub.Usage(only, timeout=20)) == {}
            compared = await records.stub.Compare(records_pb2.CompareRequest(), timeout=20)
            assert (list(compared.differences), compared.first) == ([], 1)


async def test_users_are_sealed_and_their_names_are_kept_nowhere(tmp_path: Path) -> None:
    async with (
        audit_service(tmp_path) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        for number, user in enumerate(["jane", "joe", "jane", ""]):
            await link.append(request(number, user=user))
        by_user = records_pb2.UsageRequest(by=["user"], tenant="acme")
        wanted = {("jane",): (2, 8, 20), ("joe",): (1, 4, 10), ("",): (1, 4, 10)}
        assert counts(await records.stub.Usage(by_user, timeout=20)) == wanted
        erase = audit_pb2.EraseRequest(tenant="acme", subject="jane", reason="subject_request")
        await audit.stub.Erase(erase, timeout=20)
        wanted[("<erased>",)] = wanted.pop(("jane",))
        assert counts(await records.stub.Usage(by_user, timeout=20)) == wanted
    for path in (tmp_path / "records").rglob("*"):
        assert not path.is_file() or b"jane" not in path.read_bytes()


async def test_requests_are_found_filtered_paged_and_followed(tmp_path: Path) -> None:
    async with (
        audit_service(tmp_path) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        for number in range(7):
            await link.append(request(number, tenant="acme" if number % 2 else "tiny"))

        async def page(**fields: Any) -> records_pb2.ListRequestsResponse:
            return await records.stub.ListRequests(records_pb2.ListRequestsRequest(**fields), timeout=20)

        [found] = (await page(request_id="r3")).requests
        assert (found.tenant, found.completion_tokens, found.time.seconds) == ("acme", 4, 1_800_000_000)
        first = await page(tenant="tiny", page_size=3)
        rest = await page(tenant="tiny", page_size=3, page_token=first.next_page_token)
        assert [each.request_id for each in (*first.requests, *rest.requests)] == ["r6", "r4", "r2", "r0"]
        assert not rest.next_page_token
        followed = await page(after=first.sequence, tenant="acme")
        assert not followed.requests
        await link.append(request(9))
        followed = await page(after=followed.sequence, tenant="acme")
        assert [each.request_id for each in followed.requests] == ["r9"]
        for fields in ({"page_token": "nonsense"}, {"page_size": 1001}):
            with pytest.raises(WeirError) as refused:
                await page(**fields)
            assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, next(iter(fields)))


async def test_a_dimension_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, records_service(tmp_path / "records", audit.port) as records:
        for by in (["colour"], ["day", "day"]):
            with pytest.raises(WeirError) as refused:
                await records.stub.Usage(records_pb2.UsageRequest(by=by), timeout=20)
            assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, "by")


@pytest.mark.parametrize(("appended", "fault"), [(9, "does not continue"), (2, "the log has 2 records, not 4")])
async def test_a_log_that_does_not_go_on_stops_it_until_it_is_rebuilt(
    tmp_path: Path, appended: int, fault: str
) -> None:
    async with (
        audit_service(tmp_path / "a") as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        for number in range(4):
            await link.append(request(number))
        assert counts(await records.stub.Usage(BY_TENANT, timeout=20)) == {("acme",): (4, 16, 40)}
    async with (
        audit_service(tmp_path / "b") as audit,
        connect(audit.port) as link,
        contextlib.AsyncExitStack() as stack,
    ):
        for number in range(appended):
            await link.append(request(number, tenant="other"))
        records = await stack.enter_async_context(records_service(tmp_path / "records", audit.port))
        assert counts(await records.stub.Usage(BY_TENANT, timeout=20)) == {("acme",): (4, 16, 40)}
        assert fault in records.service._projector.fault
        asked = records_pb2.RebuildRequest()
        asked.patience.seconds = 20
        rebuilt = await records.stub.Rebuild(asked, timeout=30)
        assert (rebuilt.first, rebuilt.sequence) == (1, rebuilt.upto)
        assert counts(await records.stub.Usage(BY_TENANT, timeout=20)) == {
            ("other",): (appended, 4 * appended, 10 * appended)
        }
