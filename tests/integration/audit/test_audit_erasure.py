"""What is erased from the audit log is gone for good, and the log still proves itself."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2

from libs.auditlog import Incoming, verify_directory
from libs.auditlog.layout import lines_of, segments
from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.sealing.vault import VaultError, kept
from services.audit import committer, eraser
from tests.support.audit import Audit, Link, audit_service, connect, record
from tests.support.auditfolder import audit_files
from tests.support.records import Store, records_service
from tests.support.sealed import DAY


def state(root: Path) -> Path:
    return root / "state"


def of(number: int, tenant: str = "acme", person: str = "") -> audit_pb2.Record:
    made = record(number, tenant=tenant)
    made.request.worker = f"worker-{number}"
    made.request.key_id = person or "k1"
    return made


async def tail(audit: Audit, tenant: str = "") -> dict[str, audit_pb2.StoredRecord]:
    """Records of requests and findings by their ids."""
    answer = await audit.stub.Tail(audit_pb2.TailRequest(limit=1000, tenant=tenant), timeout=10)
    return {
        each.record.id: each
        for each in answer.records
        if each.record.WhichOneof("event") in {None, "request", "safety"}
    }


async def erase(audit: Audit, tenant: str = "acme", **more: Any) -> audit_pb2.EraseResponse:
    request = audit_pb2.EraseRequest(tenant=tenant, reason="tenant_left", **more)
    return await audit.stub.Erase(request, timeout=10)


async def verified(audit: Audit) -> audit_pb2.VerifyResponse:
    answer = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
    assert answer.ok, list(answer.faults)
    return answer


async def written(link: Link, *records: audit_pb2.Record) -> None:
    for each in records:
        await link.append(each)


async def test_an_erased_tenant_leaves_its_bill_and_nothing_else(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1), of(2, "globex"), of(3, person="jwt-joe"))
        tried = await erase(audit, dry_run=True)
        assert (tried.keys, list(tried.tombstones)) == (2, [])
        done = await erase(audit, reference="TICKET-12")
        assert done.keys == 2
        [number] = done.tombstones
        await written(link, of(4))

        async def looked(audit: Audit) -> None:
            found = await tail(audit)
            assert {name: each.erased_by for name, each in found.items()} == {
                "r1": number,
                "r2": 0,
                "r3": number,
                "r4": 0,
            }
            left = found["r1"].record.request
            assert (left.prompt_tokens, left.key_id, left.worker) == (3, "k1", "")
            # A token's subject is a person, and no part of the bill.
            assert found["r3"].record.request.key_id == ""
            assert found["r2"].record == of(2, "globex")
            assert found["r4"].record == of(4)
            answer = await verified(audit)
            assert (answer.erased, answer.tombstones, answer.first) == (2, 1, 1)

        await looked(audit)
        [grave] = [
            each.record
            for each in (await audit.stub.Tail(audit_pb2.TailRequest(limit=1000), timeout=10)).records
            if each.record.HasField("tombstone")
        ]
        told = grave.tombstone
        assert (told.tenant, told.reason, told.reference, told.keys_destroyed) == (
            "acme",
            "tenant_left",
            "TICKET-12",
            2,
        )
        with pytest.raises(WeirError) as caught:
            await erase(audit, subject="jwt-joe")
        assert caught.value.reason is Reason.NOT_FOUND
    async with audit_service(tmp_path) as audit:
        await looked(audit)


async def test_one_end_user_is_erased_and_the_others_are_not(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1, person="jwt-joe"), of(2, person="jwt-ann"), of(3), of(4, "globex", person="jwt-joe"))
        done = await erase(audit, subject="jwt-joe")
        assert done.keys == 1
        found = await tail(audit)
        assert [name for name, each in found.items() if each.erased_by] == ["r1"]
        assert found["r2"].record.request.worker == "worker-2"
        # The same user of the same tenant, later: another key, which the tombstone does not cover.
        await written(link, of(5, person="jwt-joe"))
        assert (await tail(audit))["r5"].record == of(5, person="jwt-joe")
        assert (await verified(audit)).erased == 1
        everything = b"".join(path.read_bytes() for path in state(tmp_path).rglob("*") if path.is_file())
        assert b"jwt-" not in everything


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("tenant", audit_pb2.EraseRequest(reason="mistake")),
        ("reason", audit_pb2.EraseRequest(tenant="acme", reason="joe@example.com asked")),
        ("reason", audit_pb2.EraseRequest(tenant="acme", reason="retention")),
        ("reference", audit_pb2.EraseRequest(tenant="acme", reason="mistake", reference="words of joe")),
        ("before", audit_pb2.EraseRequest(tenant="acme", reason="mistake", before="2026-13")),
        ("data_class", audit_pb2.EraseRequest(tenant="acme", reason="mistake", data_class="marks")),
    ],
)
async def test_an_erasure_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, field: str, request_: audit_pb2.EraseRequest
) -> None:
    async with audit_service(tmp_path) as audit:
        with pytest.raises(WeirError) as caught:
            await audit.stub.Erase(request_, timeout=10)
        assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, field)


async def test_a_writer_makes_no_tombstone(tmp_path: Path) -> None:
    grave = audit_pb2.TombstoneEvent(actor="operator:eve", reason="mistake", tenant="acme", upto=99)
    forged = audit_pb2.Record(id="t", time=record(1).time, source="gateway/gateway-0", tombstone=grave)
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        with pytest.raises(WeirError) as caught:
            await link.append(forged)
        assert caught.value.reason is Reason.INVALID_REQUEST


async def test_a_disk_that_fills_in_the_middle_of_an_erasure_only_delays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1), of(2, "globex"))
        vault = audit.service._sealing._vault
        assert vault is not None

        def full(*_: object) -> int:
            raise VaultError("database or disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(vault, "bury", full)
            with pytest.raises(WeirError) as caught:
                await erase(audit)
            assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
            # The tombstone stands, so nobody reads it any more; and what comes is sealed by another key.
            assert (await tail(audit))["r1"].erased_by == 3
            await written(link, of(4), of(5, "globex"))
            assert len(vault.names()) == 4, list(vault.names())
        await written(link, of(6))
        found = await tail(audit)
        assert [found[name].record for name in ("r4", "r6")] == [of(4), of(6)]
        assert len(vault.names()) == 3
        assert (await verified(audit)).tombstones == 1


async def test_keys_that_are_put_back_are_destroyed_again_at_the_next_start(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1))
    shutil.copytree(state(tmp_path) / "sealing", tmp_path / "before")
    async with audit_service(tmp_path) as audit:
        await erase(audit)
    # A crash before the keys were destroyed leaves the same: a tombstone, and the vault as it was.
    shutil.rmtree(state(tmp_path) / "sealing")
    shutil.copytree(tmp_path / "before", state(tmp_path) / "sealing")
    keys, _ = kept(state(tmp_path) / "sealing" / "keys.db")
    report = verify_directory(
        state(tmp_path) / "log",
        checkpoints=state(tmp_path) / "checkpoints",
        public_key=state(tmp_path) / "keys" / "checkpoint.pub",
        keys=keys,
    )
    assert ["is there again" in fault for fault in report.faults] == [True]
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        assert (await tail(audit))["r1"].erased_by
        assert (await verified(audit)).erased == 1
        await written(link, of(2))
        assert (await tail(audit))["r2"].record == of(2)


async def test_a_log_that_is_put_back_from_before_an_erasure_stays_erased(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1))
    shutil.copytree(state(tmp_path) / "log", tmp_path / "log")
    shutil.copytree(state(tmp_path) / "checkpoints", tmp_path / "checkpoints")
    async with audit_service(tmp_path) as audit:
        await erase(audit)
    for name in ("log", "checkpoints"):
        shutil.rmtree(state(tmp_path) / name)
        shutil.move(tmp_path / name, state(tmp_path) / name)
    async with audit_service(tmp_path, wait=False) as audit:
        # The anchor is ahead of what was put back; an owner takes it.
        answer = None
        while answer is None or any("not compared" in fault for fault in answer.faults):
            answer = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        assert not answer.ok
        await audit.stub.Accept(audit_pb2.AcceptRequest(reason="put back"), timeout=10)
        assert (await tail(audit))["r1"].erased_by
        assert (await verified(audit)).erased >= 1


@pytest.mark.parametrize("harm", ["kek", "vault", "other process"])
async def test_without_its_keys_nothing_is_taken_and_nothing_goes_unsealed(tmp_path: Path, harm: str) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1))
    folder = state(tmp_path) / ("kek" if harm == "kek" else "sealing")
    aside = tmp_path / "aside"
    if harm == "other process":
        holder = audit_service(tmp_path / "second", sealing_dir=str(folder), kek=str(state(tmp_path) / "kek"))
        await holder.__aenter__()
    else:
        folder.rename(aside)
    async with audit_service(tmp_path, wait=False) as audit, connect(audit.port) as link:
        answer = audit_pb2.VerifyResponse()
        while not any(str(folder) in fault for fault in answer.faults):
            answer = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        before = {path: path.read_bytes() for path in (state(tmp_path) / "log").iterdir()}
        with pytest.raises(WeirError) as caught:
            await written(link, of(2))
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert not audit.ready.is_set()
        assert {path: path.read_bytes() for path in (state(tmp_path) / "log").iterdir()} == before
        if harm == "other process":
            await holder.__aexit__(None, None, None)
        else:
            aside.rename(folder)
        # Back without a restart.
        await audit.ready.wait()
        await written(link, of(2))
        found = await tail(audit)
        assert found["r2"].record == of(2)
        if harm != "other process":
            assert found["r1"].record == of(1)


async def test_a_record_that_cannot_be_sealed_is_told_and_is_no_write_that_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audit_service(tmp_path, probe_seconds=3600.0) as audit, connect(audit.port) as link:
        await written(link, of(1))
        assert REGISTRY.get_sample_value("weir_audit_sealing") == 1

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(audit.service._files._disk, "write", full)
            with pytest.raises(WeirError):
                await written(link, of(2))
        assert REGISTRY.get_sample_value("weir_audit_writable") == 0
        with monkeypatch.context() as patched:
            patched.setattr(audit.service._sealing, "_keyring", None)
            with pytest.raises(WeirError):
                await written(link, of(3, "globex"))
        assert REGISTRY.get_sample_value("weir_audit_writable") == 0  # nothing was written
        await written(link, of(4))
        assert REGISTRY.get_sample_value("weir_audit_writable") == 1
        assert REGISTRY.get_sample_value("weir_audit_sealing") == 0  # of another tenant
        monkeypatch.setattr(committer, "_UNSEALED_SECONDS", 0.0)
        assert REGISTRY.get_sample_value("weir_audit_sealing") == 1


async def test_records_from_before_there_were_keys_are_read_and_said_to_be_beyond_erasure(tmp_path: Path) -> None:
    files = audit_files(state(tmp_path))
    old = (
        b'{"id":"r0","request":{"prompt_tokens":3,"request_id":"r0","tenant":"acme","worker":"w"},'
        b'"source":"gateway/g","time":"2026-11-01T00:00:00Z"}'
    )
    files.commit([Incoming("r0", old)])
    files.close()
    async with audit_service(tmp_path, wait=False) as audit, connect(audit.port) as link:
        while not (await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)).faults:
            pass
        # Anchors are new here; in a mesh that goes on they are there.
        while True:
            try:
                await audit.stub.Accept(audit_pb2.AcceptRequest(reason="an upgrade"), timeout=10)
                break
            except WeirError:
                continue
        await written(link, of(1))
        found = await tail(audit, "acme")
        assert found["r0"].record.request.worker == "w"
        assert (await erase(audit)).clear_upto == 1
        assert (await tail(audit))["r0"].record.request.worker == "w"
        await verified(audit)


class Later(SystemClock):
    """The wall clock is ahead; time passes as ever."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def time(self) -> float:
        return super().time() + self.ahead


def told_at(number: int, clock: SystemClock, data_class: str = "request") -> audit_pb2.Record:
    made = of(number)
    if data_class == "safety":
        made.safety.CopyFrom(audit_pb2.SafetyEvent(tenant="acme", pattern="p1"))
    made.time.FromNanoseconds(int(clock.time() * 1e9))
    return made


async def test_records_are_taken_while_old_segments_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, seen = threading.Event(), threading.Event()

    def slow(path: Path) -> tuple[list[bytes], bytes]:
        looking.set()
        assert seen.wait(20)
        return lines_of(path)

    options: dict[str, Any] = {"retention_days": {"request": 40}, "segment_bytes": 1500}
    async with audit_service(tmp_path, **options) as audit, connect(audit.port) as link:
        for number in range(1, 9):
            await written(link, of(number))
        await audit.service._anchors.advance()
        monkeypatch.setattr(eraser, "lines_of", slow)
        retaining = asyncio.ensure_future(audit.service._eraser.retain())
        assert await asyncio.to_thread(looking.wait, 20)
        await written(link, of(9))
        seen.set()
        await retaining


async def projected(audit: Audit, records: Store) -> None:
    """The store of records has everything, and has said so."""
    await records.stub.Usage(records_pb2.UsageRequest(), timeout=10)
    await audit.stub.Read(audit_pb2.ReadRequest(after=records.service._projector.sequence), timeout=10)


async def test_what_is_too_old_goes_class_by_class_and_the_log_begins_at_a_signed_base(tmp_path: Path) -> None:
    clock = Later(0)
    options: dict[str, Any] = {"retention_days": {"request": 40, "safety": 200, "admin": 100}, "segment_bytes": 1500}
    async with (
        audit_service(tmp_path, clock=clock, **options) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        eraser = audit.service._eraser
        for number in range(1, 9):
            await written(link, told_at(number, clock, "safety" if number == 8 else "request"))
        await eraser.retain()
        assert (await verified(audit)).erased == 0
        # Only this process's clock is ahead: nobody else says so.
        clock.ahead = 110 * DAY
        await eraser.retain()
        assert (await verified(audit)).erased == 0
        await written(link, told_at(9, clock))
        await audit.service._anchors.advance()
        await projected(audit, records)
        await eraser.retain()
        answer = await verified(audit)
        begins = answer.first
        assert 1 < begins <= 8
        found = await tail(audit)
        assert [name for name, each in found.items() if each.erased_by] == [f"r{each}" for each in range(begins, 8)]
        assert found["r8"].record.safety.pattern == "p1", "kept longer, and everything behind it"
        assert "r1" not in found
        clock.ahead = 400 * DAY
        await written(link, told_at(10, clock))
        await audit.service._anchors.advance()
        await projected(audit, records)
        await eraser.retain()
        answer = await verified(audit)
        assert answer.first > begins
        assert "r8" not in await tail(audit)
    async with (
        audit_service(tmp_path, clock=clock, **options) as audit,
        connect(audit.port) as link,
        records_service(tmp_path / "records", audit.port) as records,
    ):
        await written(link, told_at(11, clock))
        assert (await verified(audit)).first == answer.first
        # r8 was no request; all others are still on the bill, also once it is made anew.
        asked = records_pb2.RebuildRequest()
        asked.patience.seconds = 20
        for _ in range(2):
            used = await records.stub.Usage(records_pb2.UsageRequest(by=["tenant"]), timeout=10)
            assert [(list(row.values), row.requests, row.prompt_tokens) for row in used.rows] == [(["acme"], 10, 30)]
            assert (await records.stub.Rebuild(asked, timeout=30)).first == answer.first
        # A store that begins now knows of which days it knows all.
        async with records_service(tmp_path / "late", audit.port) as late:
            with pytest.raises(WeirError) as lost:
                await late.stub.Usage(records_pb2.UsageRequest(by=["tenant"]), timeout=10)
            assert (lost.value.reason, lost.value.limit) == (Reason.NOT_FOUND, "since")
        assert segments(state(tmp_path) / "log")[0][0] == answer.first


async def test_nothing_is_truncated_that_the_store_of_records_has_not(tmp_path: Path) -> None:
    clock = Later(0)
    options: dict[str, Any] = {"retention_days": {"request": 40}, "segment_bytes": 1500}
    async with audit_service(tmp_path, clock=clock, **options) as audit, connect(audit.port) as link:
        for number in range(1, 9):
            await written(link, told_at(number, clock))
        clock.ahead = 110 * DAY
        await written(link, told_at(9, clock))
        await audit.service._anchors.advance()
        await audit.service._eraser.retain()
        assert (await verified(audit)).first == 1
        async with records_service(tmp_path / "records", audit.port) as records:
            await projected(audit, records)
        await audit.service._eraser.retain()
        assert (await verified(audit)).first > 1


async def test_rotation_leaves_everything_readable(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await written(link, of(1), of(2, person="jwt-joe"))
        [before] = (state(tmp_path) / "kek").glob("*.kek")
        done = await audit.stub.RotateKeys(audit_pb2.RotateKeysRequest(), timeout=10)
        assert not before.exists()
        assert (state(tmp_path) / "kek" / f"{done.kek}.kek").exists()
        await written(link, of(3))
    async with audit_service(tmp_path) as audit:
        found = await tail(audit)
        assert [found[name].record for name in ("r1", "r2", "r3")] == [of(1), of(2, person="jwt-joe"), of(3)]
        await verified(audit)
