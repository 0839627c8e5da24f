"""What the store of records depends on goes away and comes back; those who write records notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from weir.records.v1 import records_pb2

from libs.errors import Reason, WeirError
from tests.support.audit import audit_service, connect, record
from tests.support.postgres import Server, server
from tests.support.records import Store, records_service

ALL = records_pb2.UsageRequest()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


async def requests_of(records: Store) -> int:
    return sum(row.requests for row in (await records.stub.Usage(ALL, timeout=20)).rows)


async def test_a_database_that_is_away_costs_answers_alone(tmp_path: Path, postgres: Server) -> None:
    async with (
        audit_service(tmp_path) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port, database=postgres.database()) as records,
    ):
        await link.append(record(1))
        assert await requests_of(records) == 1
        postgres.stop()
        try:
            await link.append(record(2))
            for question in (records.stub.Usage(ALL, timeout=20), records.stub.ListRequests(LIST, timeout=20)):
                with pytest.raises(WeirError) as away:
                    await question
                assert (away.value.reason, away.value.limit) == (Reason.DEPENDENCY_UNAVAILABLE, "database")
            await link.append(record(3))
            while not records.service.lacks():
                await link.append(record(3))
        finally:
            postgres.start()
        await link.append(record(4))
        while records.service.lacks():
            await link.append(record(4))
        assert await requests_of(records) == len({1, 2, 3, 4})
        compared = await records.stub.Compare(records_pb2.CompareRequest(), timeout=30)
        assert not compared.differences


LIST = records_pb2.ListRequestsRequest()


async def test_two_stores_on_one_database_have_each_record_once(tmp_path: Path, postgres: Server) -> None:
    url = postgres.database()
    async with (
        audit_service(tmp_path) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "one", audit.port, database=url) as one,
        records_service(tmp_path / "other", audit.port, database=url) as other,
    ):
        for number in range(40):
            await link.append(record(number))
        assert [await requests_of(each) for each in (one, other)] == [40, 40]


async def test_without_the_audit_service_answers_are_as_of_the_last_record(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
        async with records_service(tmp_path / "records", audit.port) as records:
            assert await requests_of(records) == 1
    async with records_service(tmp_path / "records", audit.port) as records:
        assert await requests_of(records) == 1
        with pytest.raises(WeirError) as away:
            await records.stub.Rebuild(records_pb2.RebuildRequest(), timeout=5)
        assert away.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)


async def test_sums_that_differ_are_named_and_mended(tmp_path: Path) -> None:
    async with (
        audit_service(tmp_path) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        for number in range(3):
            await link.append(record(number))
        assert await requests_of(records) == 3
        with records.service._store._engine.begin() as connection:
            connection.exec_driver_sql('UPDATE "usage" SET prompt = 100')
        [found] = (await records.stub.Compare(records_pb2.CompareRequest(), timeout=20)).differences
        assert " acme " in found.subject
        assert found.detail == "prompt 100 in the store, 9 in the log"
        again = records_pb2.RebuildRequest()
        again.patience.seconds = 20
        await records.stub.Rebuild(again, timeout=30)
        assert not (await records.stub.Compare(records_pb2.CompareRequest(), timeout=20)).differences
