"""The writer: nothing lost while the service is away or with the process, nothing in the way of a request."""

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.auditlog import AuditWriter
from libs.auditlog.frame import clear_body
from libs.auditlog.layout import segments
from libs.auditlog.security import Kind, Sight
from libs.auditlog.watch import SecurityWatch
from libs.clock import SystemClock
from libs.journal import Journal
from libs.mux import Codec, MuxClient
from libs.rpc import make_channel
from tests.support.audit import audit_service, connect, record
from tests.support.etcd import free_ports

SOURCE = "gateway/gateway-0"


def journal(folder: Path, **more: int) -> Journal:
    sizes = {"max_bytes": 1 << 20, "segment_bytes": 1 << 17, "slots": 8, "slot_bytes": 512} | more
    return Journal(folder, rng=random.Random(), **sizes)


@contextlib.asynccontextmanager
async def writing(port: int, kept: Journal, **more: float) -> AsyncIterator[tuple[AuditWriter, MuxClient]]:
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        stub = audit_pb2_grpc.AuditServiceStub(channel)
        client = MuxClient(
            open_stream=lambda: stub.Session(),
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            hello=mux_pb2.Hello(service="gateway", instance="gateway-0"),
            clock=SystemClock(),
            rng=random.Random(1),
        )
        options = {"hold": 0.001, "retry_interval": 0.02} | more
        writer = AuditWriter(client, kept, source=SOURCE, clock=SystemClock(), **options)
        tasks = [asyncio.create_task(client.run()), asyncio.create_task(writer.run())]
        try:
            yield writer, client
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def stored(root: Path) -> list[dict[str, Any]]:
    """Every record of the log, as far as it is not sealed."""
    lines = [line for _, path in segments(root / "state" / "log") for line in path.read_text().splitlines()]
    return [clear_body(json.dumps(json.loads(line)["record"], separators=(",", ":")).encode()) for line in lines]


def ids(root: Path) -> list[str]:
    return [each["id"] for each in stored(root) if "request" in each]


def gaps(root: Path) -> list[tuple[int, int, str]]:
    found = [each["gap"] for each in stored(root) if "gap" in each]
    return [(each["first"], each["last"], each["reason"]) for each in found]


async def test_records_travel_at_once_when_the_service_is_there(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path) as audit, writing(audit.port, kept) as (writer, client):
        await client.wait_connected(10)
        for number in range(200):
            writer.write(record(number))
        await writer.drained()
        assert writer.healthy
        assert not writer.full
        assert audit.service._files.count == 200
    assert ids(tmp_path) == [f"r{number}" for number in range(200)]


async def test_what_waits_outlives_the_service_and_the_process(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with writing(port, journal(tmp_path / "journal"), timeout=0.5) as (writer, _):
        for number in range(300):
            writer.write(record(number))
        assert not writer.healthy
        # A kill in the middle: what the next life finds is the folder as it is now.
        shutil.copytree(tmp_path / "journal", tmp_path / "killed")
        async with audit_service(tmp_path, port=port):
            await writer.drained()
            assert writer.healthy
    assert ids(tmp_path) == [f"r{number}" for number in range(300)]
    async with audit_service(tmp_path) as audit, writing(audit.port, journal(tmp_path / "killed")) as (writer, _):
        writer.write(record(300))
        await writer.drained()
    # Whoever died before it was told sends everything again; nothing is stored twice, and the new record is there.
    assert ids(tmp_path) == [f"r{number}" for number in range(301)]
    assert gaps(tmp_path) == []


async def test_a_record_that_was_sent_and_not_acknowledged_is_stored_once(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path) as audit, writing(audit.port, kept) as (writer, client):
        await client.wait_connected(10)
        writer.write(record(1))
        await writer.drained()
        shutil.copytree(tmp_path / "journal", tmp_path / "behind")  # its acknowledgement is taken from it
        slots = bytearray((tmp_path / "behind" / "slots").read_bytes())
        slots[16:24] = bytes(8)
        (tmp_path / "behind" / "slots").write_bytes(slots)
        async with writing(audit.port, journal(tmp_path / "behind")) as (again, _):
            again.write(record(2))
            await again.drained()
    assert ids(tmp_path) == ["r1", "r2"]


async def test_what_a_killed_life_had_opened_is_ended_once_by_the_next(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with writing(port, journal(tmp_path / "0")) as (writer, _):
        for number in (1, 2, 3):
            place = writer.open(record(number))
            writer.mark(place, 10 * number)
        writer.write(record(3), place)
        shutil.copytree(tmp_path / "0", tmp_path / "1")
    async with writing(port, journal(tmp_path / "1")) as (writer, _):
        assert [each.id for each in writer.recover(ended, nothing)] == ["r1", "r2"]
        shutil.copytree(tmp_path / "1", tmp_path / "2")  # killed again, with the records written and not sent
    async with audit_service(tmp_path, port=port), writing(port, journal(tmp_path / "2")) as (writer, _):
        assert writer.recover(ended, nothing) == []
        await writer.drained()
    found = {each["id"]: each["request"] for each in stored(tmp_path)}
    assert {name: each.get("completion_tokens") for name, each in found.items()} == {"r3": None, "r1": 10, "r2": 20}
    assert found["r1"]["outcome"] == "gateway_lost"


def ended(opened: audit_pb2.Record, mark: int) -> audit_pb2.Record:
    opened.request.outcome, opened.request.completion_tokens = "gateway_lost", mark
    return opened


def nothing(kept: bytes) -> None:
    raise AssertionError(f"nobody kept {kept!r}")


async def test_what_was_kept_and_not_released_is_given_to_the_next_life_behind_what_is_older(tmp_path: Path) -> None:
    [port] = free_ports(1)
    found: list[object] = []

    def lost(opened: audit_pb2.Record, mark: int) -> None:
        found.append(opened.id)

    async with writing(port, journal(tmp_path / "0")) as (writer, _):
        released = writer.keep(b"released")
        older = writer.keep(b"")
        writer.open(record(1))
        writer.release(released)
        writer.keep(b"\0two")  # takes the place of what was released, before that of what is older
        shutil.copytree(tmp_path / "0", tmp_path / "1")
        writer.release(older)
    async with writing(port, journal(tmp_path / "1")) as (writer, _):
        assert writer.recover(lost, found.append) == []
        assert found == [b"", "r1", b"\0two"]
        shutil.copytree(tmp_path / "1", tmp_path / "2")
    async with writing(port, journal(tmp_path / "2")) as (writer, _):
        assert writer.recover(ended, nothing) == []


async def test_batches_are_as_long_as_one_commit_of_the_service_may_be(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path, max_group=6) as audit, writing(audit.port, kept) as (writer, _):
        for number in range(30):
            writer.write(record(number))
        await writer.drained()
        assert writer._most <= 4  # beside the marks and a gap
    assert ids(tmp_path) == [f"r{number}" for number in range(30)]
    assert gaps(tmp_path) == []


async def test_a_full_journal_says_so_and_what_is_dropped_is_missed(tmp_path: Path) -> None:
    [port] = free_ports(1)
    kept = journal(tmp_path / "journal", max_bytes=2 << 14, segment_bytes=1 << 14)
    async with writing(port, kept) as (writer, _):
        total = 0
        while not kept.dropped:
            writer.write(record(total := total + 1))
        assert writer.full
        writer.write(record(0))
        async with audit_service(tmp_path, port=port):
            await writer.drained()
            async with asyncio.timeout(20):
                while writer.full:  # noqa: ASYNC110 - until the disk was tended to
                    await asyncio.sleep(0.01)
            writer.write(record(9999))
            await writer.drained()
            assert writer.healthy
    assert ids(tmp_path) == [*(f"r{number}" for number in range(1, total)), "r9999"]
    assert gaps(tmp_path) == [(total, total + 1, "missing")]


async def test_what_cannot_be_stored_leaves_a_gap_that_says_why(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path) as audit, writing(audit.port, kept) as (writer, _):
        writer.write(record(1, source="registry/registry-0"))
        writer.write(record(2, tenant="x" * 20_000))
        claimed = record(3)
        claimed.marks.marks.add(source="gateway/gateway-1", journal="0" * 16, epoch="f" * 16, sequence=2**40)
        writer.write(claimed)
        writer.write(record(4))
        await writer.drained()
    assert ids(tmp_path) == ["r4"]
    assert gaps(tmp_path) == [
        (1, 1, "refused: PERMISSION_DENIED"),
        (2, 2, "refused: PAYLOAD_TOO_LARGE"),
        (3, 3, "refused: INVALID_REQUEST"),
    ]


async def test_a_source_that_is_not_the_peers_own_is_given_up(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path) as audit, writing(audit.port, kept) as (writer, _):
        writer._source = "registry/registry-0"
        writer.write(record(1))
        await writer.drained()
        assert audit.service._files.count == 0


async def test_two_that_have_one_journal_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """A folder that was copied, or a disk that was put back as it was once."""
    one = journal(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    other = journal(tmp_path / "other")
    async with (
        audit_service(tmp_path) as audit,
        writing(audit.port, one) as (first, _),
        writing(audit.port, other) as (second, _),
    ):
        for number in range(20):
            (first, second)[number % 2].write(record(number))
            await asyncio.gather(first.drained(), second.drained())
    assert sorted(ids(tmp_path)) == sorted(f"r{number}" for number in range(20))
    assert gaps(tmp_path) == []


async def test_a_batch_must_have_names_and_records(tmp_path: Path) -> None:
    good = audit_pb2.AppendBatch(
        source=SOURCE, journal="0" * 16, epoch="0" * 16, first=1, records=[record(1).SerializeToString()]
    )
    bad = [audit_pb2.AppendBatch(), audit_pb2.AppendBatch(), audit_pb2.AppendBatch(), audit_pb2.AppendBatch()]
    for each in bad:
        each.CopyFrom(good)
    bad[0].journal, bad[1].epoch, bad[2].first = "x" * 16, "0", 0
    del bad[3].records[:]
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for each in bad:
            with pytest.raises(Exception, match="batch"):
                await link.batch(each)
        assert (await link.batch(good)).sequence == 1
        assert (await link.batch(good)).duplicate


async def test_security_events_go_through_a_journal_as_well(tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    async with audit_service(tmp_path) as audit, writing(audit.port, kept) as (writer, _):

        class Appends:
            async def append(self, item: audit_pb2.Record) -> None:
                writer.write(item)

        watch = SecurityWatch(Appends(), source=SOURCE, clock=SystemClock(), rng=random.Random(1))
        watch.note(Sight(Kind.FORBIDDEN, "scope"), times=7)
        await watch.flush()
        await writer.drained()
    assert ["security" in each for each in stored(tmp_path)] == [True]
    assert REGISTRY.get_sample_value("weir_audit_writer_records_total", {"outcome": "acknowledged"}) > 0
