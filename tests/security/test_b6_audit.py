"""B6: whoever has the audit log's disk, with or without the key that lies on it, cannot have another history signed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from weir.audit.v1 import audit_pb2

from libs.auditlog import LogLockedError, load_or_create_signer, verify_directory
from libs.auditlog.chain import ZERO, Checkpoint, decode_entry, encode_checkpoint, encode_entry, signed_bytes
from libs.auditlog.keys import PRIVATE_NAME, PUBLIC_NAME, fingerprint
from libs.auditlog.layout import lines_of, segments
from libs.errors import Reason, WeirError
from libs.registry import Put
from libs.registry.keys import AUDIT_CHECKPOINTS
from tests.support.audit import Audit, KeptStore, Link, audit_service, connect, record

KEY = AUDIT_CHECKPOINTS + "audit-0"


@contextlib.asynccontextmanager
async def service(root: Path, **more: Any) -> AsyncIterator[Audit]:
    """The service as it comes up, whether it takes records or not."""
    async with audit_service(root, wait=False, **more) as audit:
        yield audit


async def verdict(audit: Audit) -> audit_pb2.VerifyResponse:
    while True:
        answer = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        if not any("not compared" in fault for fault in answer.faults):
            return answer


async def refused(audit: Audit, *, saying: str) -> None:
    """Nothing is appended, nothing is signed, health is bad and verification says why."""
    before = {path: path.read_bytes() for path in state_of(audit).rglob("*.log")}
    answer = await verdict(audit)
    assert not answer.ok
    assert any(saying in fault for fault in answer.faults), list(answer.faults)
    assert not audit.ready.is_set()
    async with connect(audit.port) as link:
        with pytest.raises(WeirError) as caught:
            await link.append(record(999))
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert {path: path.read_bytes() for path in state_of(audit).rglob("*.log")} == before


def state_of(audit: Audit) -> Path:
    return audit.service._settings.directory("", "log").parent


async def written(root: Path, records: int = 6, **more: Any) -> None:
    async with audit_service(root, **more) as audit, connect(audit.port) as link:
        for number in range(1, records + 1):
            await link.append(record(number))
        assert (await verdict(audit)).ok


def state(root: Path) -> Path:
    return root / "state"


def rewritten(root: Path, change: Callable[[bytes], bytes] = lambda r: r.replace(b"acme", b"evil")) -> bytes:
    """Another history with the chain computed anew, which needs no key; its head."""
    prev = ZERO
    sequence = 0
    for _, path in segments(state(root) / "log"):
        made = []
        for line in lines_of(path)[0]:
            sequence += 1
            prev, again = encode_entry(prev, sequence, change(decode_entry(line).record))
            made.append(again)
        path.write_bytes(b"".join(made))
    return prev


def signed(root: Path, count: int, head: bytes, *, keys: Path | None = None) -> bytes:
    """A checkpoint of whoever has the key."""
    time = "2027-01-15T08:00:00.000Z"
    sign = load_or_create_signer(keys or state(root) / "keys")
    return encode_checkpoint(Checkpoint(count, head, time, sign(signed_bytes(count, head, time))))


def checkpoints(root: Path) -> Path:
    return state(root) / "checkpoints" / "checkpoints.log"


async def test_b6_a_rewritten_history_without_checkpoints_is_not_signed(tmp_path: Path) -> None:
    await written(tmp_path)
    rewritten(tmp_path)
    checkpoints(tmp_path).unlink()
    async with service(tmp_path) as audit:
        await refused(audit, saying="there are records but no checkpoint")


async def test_b6_a_rewritten_history_beside_its_old_checkpoints_is_not_signed(tmp_path: Path) -> None:
    await written(tmp_path)
    rewritten(tmp_path)
    async with service(tmp_path) as audit:
        await refused(audit, saying="is not the one that was checkpointed")
        # The files alone say so, before any anchor is asked.
        assert "checkpointed" in audit.service._committer.damaged


async def test_b6_a_rewritten_history_signed_with_the_key_on_the_disk_contradicts_the_anchor(tmp_path: Path) -> None:
    await written(tmp_path)
    head = rewritten(tmp_path)
    count = sum(len(lines_of(path)[0]) for _, path in segments(state(tmp_path) / "log"))
    checkpoints(tmp_path).write_bytes(signed(tmp_path, count, head))
    async with service(tmp_path) as audit:
        await refused(audit, saying="is not the one that was anchored in etcd")


async def test_b6_a_forger_with_the_key_is_found_when_etcd_comes_back(tmp_path: Path) -> None:
    store = KeptStore()
    await written(tmp_path, store=store)
    head = rewritten(tmp_path)
    count = sum(len(lines_of(path)[0]) for _, path in segments(state(tmp_path) / "log"))
    checkpoints(tmp_path).write_bytes(signed(tmp_path, count, head))
    anchor = await store.get(KEY)
    store.set_available(False)
    async with audit_service(tmp_path, store=store, anchor_seconds=0.02) as audit, connect(audit.port) as link:
        await link.append(record(50))
        store.set_available(True)
        async with asyncio.timeout(20):
            while (await verdict(audit)).ok:
                """It is looked at again with every verification."""
        with pytest.raises(WeirError):
            await link.append(record(51))
        assert (await audit.service._anchors.advance()).faults
    assert await store.get(KEY) == anchor


async def test_b6_a_truncation_to_an_older_checkpoint_is_found(tmp_path: Path) -> None:
    await written(tmp_path)
    kept = lines_of(checkpoints(tmp_path))[0][:3]
    checkpoints(tmp_path).write_bytes(b"".join(kept))
    [(_, path)] = segments(state(tmp_path) / "log")
    path.write_bytes(b"".join(lines_of(path)[0][: json.loads(kept[-1])["count"]]))
    async with service(tmp_path) as audit:
        await refused(audit, saying="were anchored in etcd and are missing")


async def test_b6_an_older_disk_beside_a_newer_anchor_is_found_and_an_operator_may_accept_it(tmp_path: Path) -> None:
    await written(tmp_path)
    shutil.copytree(state(tmp_path), tmp_path / "backup")
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(100))
    shutil.rmtree(state(tmp_path))
    shutil.copytree(tmp_path / "backup", state(tmp_path))
    async with service(tmp_path) as audit:
        await refused(audit, saying="were anchored in etcd and are missing")
        with pytest.raises(WeirError) as caught:
            await audit.stub.Accept(audit_pb2.AcceptRequest(), timeout=10)
        assert caught.value.limit == "reason"
        done = await audit.stub.Accept(audit_pb2.AcceptRequest(reason="restored from the backup"), timeout=10)
        assert "are missing" in done.faults[0]
        await asyncio.wait_for(audit.ready.wait(), 10)
        assert (await verdict(audit)).ok
        async with connect(audit.port) as link:
            await link.append(record(101))
        [said] = [
            each.record.admin
            for each in (await audit.stub.Tail(audit_pb2.TailRequest(limit=100), timeout=10)).records
            if each.record.admin.action == "audit.Accept"
        ]
        assert said.reason.startswith("restored from the backup (accepted: records ")
        with pytest.raises(WeirError, match="no anchor says"):
            await audit.stub.Accept(audit_pb2.AcceptRequest(reason="again"), timeout=10)
    async with audit_service(tmp_path) as audit:
        assert (await verdict(audit)).ok


async def test_b6_records_in_another_order_are_found(tmp_path: Path) -> None:
    await written(tmp_path)
    [(_, path)] = segments(state(tmp_path) / "log")
    lines = lines_of(path)[0]
    lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))
    async with service(tmp_path) as audit:
        await refused(audit, saying="stands where")


async def test_b6_another_key_pair_in_the_folder_is_found(tmp_path: Path) -> None:
    await written(tmp_path)
    known = fingerprint(state(tmp_path) / "keys" / PUBLIC_NAME)
    for name in (PRIVATE_NAME, PUBLIC_NAME):
        (state(tmp_path) / "keys" / name).unlink()
    head = rewritten(tmp_path)
    count = sum(len(lines_of(path)[0]) for _, path in segments(state(tmp_path) / "log"))
    checkpoints(tmp_path).write_bytes(signed(tmp_path, count, head))
    # By its own files alone the forgery is perfect: that is why the key's fingerprint belongs somewhere else.
    alone = verify_directory(
        state(tmp_path) / "log",
        checkpoints=state(tmp_path) / "checkpoints",
        public_key=state(tmp_path) / "keys" / PUBLIC_NAME,
    )
    assert alone.ok
    async with service(tmp_path) as audit:
        await refused(audit, saying="bad signature")
    async with service(tmp_path, key_fingerprint=known) as audit:
        await refused(audit, saying="not the one that is pinned")


@pytest.mark.parametrize("attack", ["deleted", "emptied", "replaced"])
async def test_b6_an_anchor_in_etcd_that_is_lost_or_replaced_is_a_fault(tmp_path: Path, attack: str) -> None:
    store = KeptStore()
    await written(tmp_path, store=store)
    found = await store.get(KEY)
    assert found is not None
    if attack == "deleted":
        await store.txn(deletes=[KEY])
    elif attack == "emptied":
        await store.txn(puts=[Put(KEY, b"")])
    else:
        await store.txn(puts=[Put(KEY, signed(tmp_path, 3, b"\7" * 32, keys=tmp_path / "other"))])
    saying = {"deleted": "is lost", "emptied": "malformed", "replaced": "bad signature"}[attack]
    async with service(tmp_path, store=store) as audit:
        await refused(audit, saying=saying)
        # What comes back as it was is taken as it was.
        await store.txn(puts=[Put(KEY, found.value)])
        assert (await verdict(audit)).ok
        await asyncio.wait_for(audit.ready.wait(), 10)


async def test_b6_an_anchor_that_was_rolled_back_is_replaced_only_because_the_log_contains_it(tmp_path: Path) -> None:
    store = KeptStore()
    async with audit_service(tmp_path, store=store) as audit, connect(audit.port) as link:
        await link.append(record(1))
    old = await store.get(KEY)
    assert old is not None
    async with audit_service(tmp_path, store=store) as audit, connect(audit.port) as link:
        await link.append(record(2))
    await store.txn(puts=[Put(KEY, old.value)])
    async with audit_service(tmp_path, store=store) as audit:
        assert (await verdict(audit)).ok
    newer = await store.get(KEY)
    assert newer is not None
    assert json.loads(newer.value.splitlines()[0])["count"] > json.loads(old.value.splitlines()[0])["count"]


async def test_b6_an_anchor_lost_while_the_service_runs_stops_it(tmp_path: Path) -> None:
    store = KeptStore()
    async with audit_service(tmp_path, store=store, anchor_seconds=0.02) as audit, connect(audit.port) as link:
        await link.append(record(1))
        await store.txn(deletes=[KEY])
        with pytest.raises(WeirError):
            await append_for_ever(link)
        answer = await verdict(audit)
        assert "the anchor in etcd is lost" in answer.faults


async def append_for_ever(link: Link) -> None:
    number = 1
    while True:
        number += 1
        await link.append(record(number))


@pytest.mark.parametrize("attack", ["emptied", "forged"])
async def test_b6_a_second_anchor_that_is_missing_or_disagrees_is_a_fault(tmp_path: Path, attack: str) -> None:
    store, bucket = KeptStore(), tmp_path / "bucket"
    where = {"store": store, "blobs": bucket.as_uri()}
    await written(tmp_path, **where)
    [first, *_] = sorted((bucket / "kept" / "audit-anchors" / "audit-0").iterdir())
    if attack == "emptied":
        shutil.rmtree(bucket)
        saying = "has lost it"
    else:
        # Who has the disk with the key and writes etcd, too: the bucket still knows.
        head = rewritten(tmp_path)
        count = sum(len(lines_of(path)[0]) for _, path in segments(state(tmp_path) / "log"))
        line = signed(tmp_path, count, head)
        checkpoints(tmp_path).write_bytes(line)
        await store.txn(puts=[Put(KEY, line)])
        # The anchor of the start is of no record yet; one of records is there after a restart.
        first.chmod(0o644)
        first.write_bytes(signed(tmp_path, 2, b"\7" * 32))
        saying = "is not the one that was anchored in the bucket"
    async with service(tmp_path, **where) as audit:
        await refused(audit, saying=saying)


async def test_b6_the_second_anchor_alone_finds_a_forgery_that_took_etcd_along(tmp_path: Path) -> None:
    store, bucket = KeptStore(), tmp_path / "bucket"
    where = {"store": store, "blobs": bucket.as_uri()}
    await written(tmp_path, **where)
    async with audit_service(tmp_path, **where) as audit:  # anchors what was written in the bucket, at its start
        assert (await verdict(audit)).ok
    head = rewritten(tmp_path)
    count = sum(len(lines_of(path)[0]) for _, path in segments(state(tmp_path) / "log"))
    line = signed(tmp_path, count, head)
    checkpoints(tmp_path).write_bytes(line)
    await store.txn(puts=[Put(KEY, line)])
    async with service(tmp_path, **where) as audit:
        await refused(audit, saying="anchored in the bucket")
    async with audit_service(tmp_path, store=store) as audit:  # without the bucket it would have passed
        assert (await verdict(audit)).ok


async def test_b6_two_services_cannot_write_one_log(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
        with pytest.raises(BaseExceptionGroup) as caught:
            async with audit_service(tmp_path):
                pass
        assert caught.group_contains(LogLockedError)
        assert (await link.append(record(2))).sequence == 2
        assert (await verdict(audit)).ok


async def test_b6_a_disk_that_fills_in_the_middle_of_a_group_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
        room = 700

        def full(descriptor: int, data: bytes) -> int:
            nonlocal room
            if not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = os.write(descriptor, data[:room])
            room -= size
            return size

        monkeypatch.setattr(audit.service._files._disk, "write", full)
        answers = await asyncio.gather(*(link.append(record(n)) for n in range(2, 40)), return_exceptions=True)
        stored = [answer for answer in answers if isinstance(answer, audit_pb2.Appended)]
        monkeypatch.undo()
        async with asyncio.timeout(20):
            while not (await verdict(audit)).ok:
                """The read's own record finds out that the disk is back."""
        again = [await link.append(record(n)) for n in range(2, 40)]
        assert sum(answer.duplicate for answer in again) == len(stored)


@pytest.mark.parametrize(("beyond", "healthy"), [(3, True), (5, False)])
async def test_b6_a_crash_leaves_at_most_a_group_beyond_the_checkpoint(
    tmp_path: Path, beyond: int, healthy: bool
) -> None:
    """The etcd anchor is as old as the checkpoint then: both are written after the records."""
    store = KeptStore()
    async with audit_service(tmp_path, store=store, max_group=4) as audit, connect(audit.port) as link:
        await link.append(record(1))
        await link.append(record(2))
    [(_, path)] = segments(state(tmp_path) / "log")
    last = decode_entry(lines_of(path)[0][-1])
    prev, lines = last.hash, []
    for number in range(beyond):
        body = json.dumps({"id": f"x{number}", "time": "2027-01-15T08:00:00Z"}, separators=(",", ":")).encode()
        prev, line = encode_entry(prev, last.sequence + 1 + number, body)
        lines.append(line)
    with path.open("ab") as file:
        file.write(b"".join(lines))
    async with service(tmp_path, store=store, max_group=4) as audit:
        if not healthy:
            await refused(audit, saying="stand beyond the last checkpoint")
            return
        await asyncio.wait_for(audit.ready.wait(), 10)
        tail = (await audit.stub.Tail(audit_pb2.TailRequest(limit=100), timeout=10)).records
        # Somebody with the disk could have written them, so the log says that nobody had vouched for them.
        [said] = [each.record.admin for each in tail if each.record.admin.action == "audit.Recover"]
        assert said.reason == "records 3 to 5 were found beyond the last checkpoint and kept"


async def test_b6_a_clock_that_jumps_back_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
        now = iter(["2031-01-01T00:00:00.000Z", "1999-01-01T00:00:00.000Z"])
        monkeypatch.setattr(audit.service._files, "_now", lambda: next(now, "1980-01-01T00:00:00.000Z"))
        await link.append(record(2))
        await link.append(record(3))
        assert (await verdict(audit)).ok
    async with audit_service(tmp_path) as audit:
        assert (await verdict(audit)).ok


async def test_b6_the_first_start_needs_no_ceremony_but_waits_for_etcd(tmp_path: Path) -> None:
    """From the first record on a missing anchor is a lost one, so the anchor comes first."""
    store = KeptStore()
    store.set_available(False)
    async with service(tmp_path, store=store) as audit, connect(audit.port) as link:
        await link.client.wait_connected(10)
        with pytest.raises(WeirError, match="takes no records now"):
            await link.append(record(1), seconds=1)
        assert not audit.ready.is_set()
        store.set_available(True)
        await asyncio.wait_for(audit.ready.wait(), 10)
        assert await store.get(KEY) is not None
        assert (await link.append(record(1))).sequence == 1


async def test_b6_a_replay_however_late_is_stored_once(tmp_path: Path) -> None:
    async with audit_service(tmp_path, segment_bytes=2_000, max_group=16) as audit, connect(audit.port) as link:
        first = await asyncio.gather(*(link.append(moment(number)) for number in range(300)))
    assert len(segments(state(tmp_path) / "log")) > 10
    async with audit_service(tmp_path, segment_bytes=2_000) as audit, connect(audit.port) as link:
        await asyncio.gather(*(link.append(moment(number)) for number in range(300, 400)))
        again = await asyncio.gather(*(link.append(moment(number)) for number in range(0, 300, 7)))
        assert all(answer.duplicate for answer in again)
        assert [answer.sequence for answer in again] == [answer.sequence for answer in first[::7]]


async def test_b6_a_replay_is_stored_once_although_its_index_is_lost(tmp_path: Path) -> None:
    async with audit_service(tmp_path, segment_bytes=2_000, max_group=16) as audit, connect(audit.port) as link:
        await asyncio.gather(*(link.append(moment(number)) for number in range(100)))
    for at, path in enumerate((state(tmp_path) / "log").glob("*.ids")):
        path.unlink() if at % 2 else os.truncate(path, 20)
    async with audit_service(tmp_path, segment_bytes=2_000) as audit, connect(audit.port) as link:
        again = await asyncio.gather(*(link.append(moment(number)) for number in range(100)))
        assert all(answer.duplicate for answer in again)


def moment(number: int) -> audit_pb2.Record:
    made = record(number)
    made.time.seconds += number
    return made


async def test_b6_a_damaged_line_is_shown_in_the_tail(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for number in range(1, 4):
            await link.append(record(number))
        [(_, path)] = segments(state(tmp_path) / "log")
        lines = path.read_bytes().splitlines(keepends=True)
        lines[1] = b'{"acme": ' + lines[1][10:]
        path.write_bytes(b"".join(lines))
        for tenant in ("acme", ""):
            tail = (await audit.stub.Tail(audit_pb2.TailRequest(tenant=tenant), timeout=10)).records
            assert [(each.sequence, bool(each.damage)) for each in tail[:3]] == [(1, False), (2, True), (3, False)]
            assert tail[1].damage == "the line is malformed"
