"""Appending: groups, crashes at any byte, failing disks, segments."""

import errno
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.auditlog import (
    AuditFiles,
    LogDamagedError,
    LogLockedError,
    WriteFailedError,
    load_or_create_signer,
    load_verifier,
    verify_directory,
)
from libs.auditlog.chain import decode_entry
from libs.auditlog.disk import Disk
from libs.auditlog.files import CHECKPOINT_BYTES, CHECKPOINTS_KEPT
from libs.auditlog.group import Incoming, Stored
from libs.auditlog.keys import PUBLIC_NAME
from libs.auditlog.layout import segments
from libs.auditlog.tail import read_tail


class FailingDisk(Disk):
    """Fails while `broken`; with `room` set, writes no more than that many bytes first."""

    def __init__(self) -> None:
        self.set()

    def set(self, *, broken: bool = False, room: int = 0, sync_broken: bool = False) -> None:
        self.broken, self.room, self.sync_broken = broken, room, sync_broken

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.broken:
            return os.write(descriptor, data)
        if self.room:
            size = min(self.room, len(data))
            self.room -= size
            return os.write(descriptor, data[:size])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, descriptor: int) -> None:
        if self.sync_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)


def record(number: int) -> Incoming:
    return Incoming(f"r{number}", json.dumps({"id": f"r{number}"}, separators=(",", ":")).encode())


def make(root: Path, *, disk: Disk | None = None, segment_bytes: int = 2**20) -> AuditFiles:
    return AuditFiles(
        root / "log",
        root / "checkpoints",
        sign=load_or_create_signer(root / "keys"),
        verify=load_verifier(root / "keys" / PUBLIC_NAME),
        now=lambda: "2026-01-01T00:00:00Z",
        segment_bytes=segment_bytes,
        disk=disk,
    )


def opened(root: Path, **more: object) -> AuditFiles:
    log = make(root, **more)  # type: ignore[arg-type]
    log.open()
    return log


def ids(root: Path) -> list[str]:
    return [
        json.loads(decode_entry(line + b"\n").record)["id"]
        for _, path in segments(root / "log")
        for line in path.read_bytes().splitlines()
    ]


def assert_good(root: Path, records: int) -> None:
    report = verify_directory(root / "log", checkpoints=root / "checkpoints", public_key=root / "keys" / PUBLIC_NAME)
    assert (report.faults, report.records) == ([], records)


def test_groups_get_consecutive_numbers_and_survive_a_restart(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.commit([record(1), record(2)]) == [Stored(1), Stored(2)]
    assert log.commit([record(3)]) == [Stored(3)]
    log.close()
    again = opened(tmp_path)
    assert (again.count, again.head) == (3, log.head)
    assert [again.sequence_of(f"r{number}") for number in range(1, 5)] == [1, 2, 3, None]
    assert again.commit([record(4)]) == [Stored(4)]
    assert_good(tmp_path, 4)
    again.close()


def test_segments_rotate_and_every_record_is_stored_once_for_ever(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=1000)
    for number in range(1, 41):
        log.commit([record(number)])
    log.close()
    assert len(segments(tmp_path / "log")) > 5
    assert_good(tmp_path, 40)
    again = opened(tmp_path, segment_bytes=1000)
    assert again.count == 40
    late = again.commit([record(number) for number in (1, 41, 20)])
    assert late == [Stored(1, duplicate=True), Stored(41), Stored(20, duplicate=True)]
    assert_good(tmp_path, 41)
    again.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(LogLockedError):
        make(tmp_path).open()
    log.close()
    opened(tmp_path).close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10**6), checkpoint_cut=st.integers(0, 10**6), garbage=st.binary(max_size=20))
def test_a_crash_at_any_byte_loses_nothing_acknowledged(
    tmp_path: Path, cut: int, checkpoint_cut: int, garbage: bytes
) -> None:
    """Records 1-3 are acknowledged; the write of 4-5 and of its checkpoint is cut at any place."""
    for path in list(tmp_path.rglob("*.log")):
        path.unlink()
    log = opened(tmp_path)
    log.commit([record(1), record(2), record(3)])
    segment, checkpoints = segments(tmp_path / "log")[0][1], tmp_path / "checkpoints" / "checkpoints.log"
    before, before_checkpoint = segment.stat().st_size, checkpoints.stat().st_size
    log.commit([record(4), record(5)])
    log.close()
    size, size_checkpoint = segment.stat().st_size, checkpoints.stat().st_size
    end = before + cut % (size - before + 1)
    os.truncate(segment, end)
    if end < size:
        # The checkpoint is written only after the records are on disk.
        os.truncate(checkpoints, before_checkpoint)
        with segment.open("ab") as file:
            file.write(garbage.replace(b"\n", b""))
    else:
        os.truncate(checkpoints, before_checkpoint + checkpoint_cut % (size_checkpoint - before_checkpoint + 1))
    again = opened(tmp_path)
    assert 3 <= again.count <= 5
    again.commit([record(6)])
    again.close()
    assert_good(tmp_path, again.count)
    assert ids(tmp_path)[:3] == ["r1", "r2", "r3"]


@pytest.mark.parametrize("damage", ["drop", "flip", "torn", "swap_checkpoint", "middle"])
def test_damage_to_what_was_acknowledged_is_never_repaired(tmp_path: Path, damage: str) -> None:
    log = opened(tmp_path, segment_bytes=500)
    for number in range(1, 8):
        log.commit([record(number)])
    log.close()
    found = segments(tmp_path / "log")
    last = found[-1][1]
    checkpoints = tmp_path / "checkpoints" / "checkpoints.log"
    if damage == "drop":
        last.write_bytes(b"")
    elif damage == "flip":
        last.write_bytes(last.read_bytes().replace(b'"id":"r', b'"id":"s', 1))
    elif damage == "torn":
        os.truncate(last, last.stat().st_size - 5)
    elif damage == "swap_checkpoint":
        checkpoints.write_bytes(checkpoints.read_bytes().replace(b'"count":7', b'"count":6'))
    else:
        found[1][1].unlink()
    before = last.read_bytes()
    with pytest.raises(LogDamagedError):
        make(tmp_path).open()
    assert last.read_bytes() == before


@pytest.mark.parametrize("room", [0, 1, 100, 250, 400, 600])
def test_a_full_disk_leaves_no_trace_and_recovers(tmp_path: Path, room: int) -> None:
    disk = FailingDisk()
    log = opened(tmp_path, disk=disk)
    log.commit([record(1)])
    disk.set(broken=True, room=room)
    with pytest.raises(WriteFailedError, match="space"):
        log.commit([record(2), record(3)])
    assert (log.count, log.sequence_of("r2")) == (1, None)
    assert_good(tmp_path, 1)
    with pytest.raises(WriteFailedError):
        log.probe()
    disk.set()
    log.probe()
    assert log.commit([record(2)]) == [Stored(2)]
    log.close()
    assert_good(tmp_path, 2)
    assert ids(tmp_path) == ["r1", "r2"]


def test_what_is_left_of_a_block_is_no_room_for_records(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = opened(tmp_path, disk=disk)
    log.commit([record(1)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.log")}
    for _ in range(2):
        disk.set(broken=True, room=4096)
        with pytest.raises(WriteFailedError, match="space"):
            log.probe()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.log")} == before
    disk.set()
    log.probe()
    log.close()
    assert_good(tmp_path, 1)


def test_a_failing_sync_is_a_failed_commit(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = opened(tmp_path, disk=disk)
    log.commit([record(1)])
    disk.set(sync_broken=True)
    for _ in range(2):
        with pytest.raises(WriteFailedError):
            log.commit([record(2)])
    disk.set()
    assert log.commit([record(2)]) == [Stored(2)]
    log.close()
    assert_good(tmp_path, 2)


def test_the_checkpoint_file_stays_short(tmp_path: Path) -> None:
    log = opened(tmp_path)
    path = tmp_path / "checkpoints" / "checkpoints.log"
    log.commit([record(1)])
    line = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(line * (CHECKPOINT_BYTES // len(line) + 1))
    log.close()
    log = opened(tmp_path)
    log.commit([record(2)])
    assert len(path.read_bytes().splitlines()) == CHECKPOINTS_KEPT + 1
    log.close()
    assert_good(tmp_path, 2)


def test_the_tail_is_filtered_and_bounded(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=500)
    for number in range(1, 20):
        log.commit([record(number)])

    def tail(**more: object) -> list[int]:
        options = {"limit": 3, "upto": log.count, "wanted": lambda _: True, **more}
        return [entry.sequence for entry in read_tail(tmp_path / "log", **options)]  # type: ignore[arg-type]

    assert tail() == [17, 18, 19]
    assert tail(upto=5) == [3, 4, 5]
    assert tail(limit=100) == list(range(1, 20))
    assert tail(wanted=lambda entry: b'"r1' in entry.record, limit=2) == [18, 19]
    assert len(tail(limit=100, max_bytes=1)) < 10
    log.close()


def test_every_record_is_found_again_from_the_disk_over_segments_and_a_changed_one_behind_it_is_not_passed(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path, segment_bytes=600)
    heads = []
    for number in range(1, 13):
        heads.append(log.head)
        log.commit([record(number)])
    assert [log.hash_at(count) for count in range(12)] == heads
    _, (changed, path), *_ = segments(tmp_path / "log")
    path.write_bytes(path.read_bytes().replace(b'"r%d"' % changed, b'"q%d"' % changed))
    assert log.hash_at(changed) == heads[changed]  # what follows it holds
    with pytest.raises(LogDamagedError, match=f"between record {changed - 1} and record 12"):
        log.hash_at(changed - 1)
    for count in (13, -1):
        with pytest.raises(LogDamagedError):
            log.hash_at(count)
    log.close()


def test_comparing_with_an_anchor_takes_the_memory_of_a_record_and_not_of_a_segment(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=2**30)
    for number in range(0, 2000, 500):
        body = b'{"id":"r%d","note":"' + b"x" * 2000 + b'"}'
        log.commit([Incoming(f"r{each}", body % each) for each in range(number, number + 500)])
    tracemalloc.start()
    try:
        log.hash_at(1000)
        assert tracemalloc.get_traced_memory()[1] < 500_000 < (tmp_path / "log" / f"{1:018d}.log").stat().st_size / 8
    finally:
        tracemalloc.stop()
    log.close()
