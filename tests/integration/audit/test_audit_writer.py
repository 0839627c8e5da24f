"""The writer: nothing lost while the service is away, nothing in the way of a request."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.auditlog import AuditWriter, Spool
from libs.auditlog.layout import segments
from libs.clock import SystemClock
from libs.mux import Codec, MuxClient
from libs.rpc import make_channel
from tests.support.audit import audit_service, record
from tests.support.etcd import free_ports


@contextlib.asynccontextmanager
async def writing(port: int, spool: Spool, **more: float) -> AsyncIterator[tuple[AuditWriter, MuxClient]]:
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        stub = audit_pb2_grpc.AuditServiceStub(channel)
        client = MuxClient(
            open_stream=lambda: stub.Session(),
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            hello=mux_pb2.Hello(service="gateway", instance="gateway-0"),
            clock=SystemClock(),
            rng=random.Random(1),
        )
        writer = AuditWriter(client, spool, clock=SystemClock(), retry_interval=0.02, **more)  # type: ignore[arg-type]
        tasks = [asyncio.create_task(client.run()), asyncio.create_task(writer.run())]
        try:
            yield writer, client
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def stored(root: Path) -> list[str]:
    lines = [line for _, path in segments(root / "state" / "log") for line in path.read_text().splitlines()]
    return [line.split('"id":"')[1].split('"')[0] for line in lines]


async def test_records_travel_at_once_when_the_service_is_there(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 10**6)
    async with audit_service(tmp_path) as audit, writing(audit.port, spool) as (writer, client):
        await client.wait_connected(10)
        for number in range(200):
            writer.write(record(number))
        await writer.settled()
        assert writer.healthy
        assert not writer.full
        assert audit.service._files.count == 200
    assert list((tmp_path / "spool").glob("*")) == []


async def test_records_are_spooled_and_replayed(tmp_path: Path) -> None:
    [port] = free_ports(1)
    spool = Spool(tmp_path / "spool", 10**6)
    async with writing(port, spool, timeout=0.5) as (writer, _):
        for number in range(300):
            writer.write(record(number))
        await writer.settled()
        assert spool.pending == 300
        assert not writer.healthy
        assert not writer.full
        async with audit_service(tmp_path, port=port):
            await writer.drained()
            assert writer.healthy
            writer.write(record(300))
            await writer.drained()
        assert sorted(stored(tmp_path)) == sorted(f"r{number}" for number in range(301))
        # Away again: what comes now waits on disk, beyond this process's life too.
        writer.write(record(301))
        await writer.settled()
        assert spool.pending == 1
    again = Spool(tmp_path / "spool", 10**6)
    async with audit_service(tmp_path) as audit, writing(audit.port, again) as (writer, _):
        await writer.drained()
    assert stored(tmp_path)[-1] == "r301"


async def test_what_is_unacknowledged_at_the_end_is_spooled(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 10**6)
    async with audit_service(tmp_path) as audit:
        async with writing(audit.port, spool) as (writer, client):
            await client.wait_connected(10)
            # Sent, but ended before an answer can have come.
            writer.write(record(1))
        assert Spool(tmp_path / "spool", 10**6).pending == 1


async def test_a_full_spool_says_so_and_the_rest_is_dropped_and_counted(tmp_path: Path) -> None:
    [port] = free_ports(1)
    spool = Spool(tmp_path / "spool", 300)
    async with writing(port, spool) as (writer, _):
        for number in range(20):
            writer.write(record(number))
        await writer.settled()
        assert 0 < spool.pending < 20
        while not spool.full:
            spool.append(b"")
            if spool._max_bytes - spool.bytes < 10:
                break
        assert writer.full or spool.bytes > 280


async def test_a_buffer_that_cannot_drain_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    spool = Spool(tmp_path / "spool", 10**6)

    def failing(records: object) -> int:
        raise OSError("no disk")

    async with writing(port, spool, max_buffer=10) as (writer, _):
        monkeypatch.setattr(spool, "append_all", failing)
        for number in range(11):
            writer.write(record(number))
        assert writer._buffered == 10
        assert writer.full
        monkeypatch.undo()
        await writer.settled()
        assert spool.pending == 10
        assert not writer.full


async def test_refused_records_do_not_come_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 10**6)
    async with audit_service(tmp_path) as audit, writing(audit.port, spool) as (writer, client):
        await client.wait_connected(10)
        writer.write(record(1, source="registry/registry-0"))
        writer.write(record(2))
        await writer.settled()
        assert spool.pending == 0
        assert audit.service._files.count == 1
