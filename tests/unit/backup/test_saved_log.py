"""An audit log that is being written is saved at its newest checkpoint: it verifies, and a service goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.auditlog.layout import CHECKPOINTS_NAME, segments
from libs.backup.auditlog import AuditLogError, SavedLog, check, check_key, check_room, move_into
from tests.support.auditfolder import append, audit_files

SEGMENT = 700
"""Bytes: three records or so."""


def saved(folder: Path, into: Path) -> SavedLog:
    log = SavedLog(folder)
    for path, content in log.files():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_bytes(content)
    return log


@pytest.mark.parametrize("records", [0, 1, 3, 11])
def test_a_saved_log_verifies_and_goes_on(tmp_path: Path, records: int) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    append(files, records)
    log = saved(tmp_path / "audit", tmp_path / "saved")
    files.close()
    assert log.records == records
    check(tmp_path / "saved", records)
    # The private half is no part of it; whoever keeps it puts it back.
    assert [path.name for path in (tmp_path / "saved" / "keys").iterdir()] == ["checkpoint.pub"]
    (tmp_path / "audit" / "keys" / "checkpoint.key").rename(tmp_path / "saved" / "keys" / "checkpoint.key")
    again = audit_files(tmp_path / "saved", segment_bytes=SEGMENT)
    append(again, 2)
    again.close()
    check(tmp_path / "saved", records + 2)


def test_what_is_written_meanwhile_is_left_out(tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    append(files, 5)
    log = SavedLog(tmp_path / "audit")
    # More records and segments before the first one is copied, and a line of which half is on the disk.
    append(files, 6)
    with segments(tmp_path / "audit" / "log")[-1][1].open("ab") as segment:
        segment.write(b'{"hash":"00')
    for path, content in log.files():
        (tmp_path / "saved" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / path).write_bytes(content)
    files.close()
    check(tmp_path / "saved", 5)


def test_closed_segments_are_the_same_bytes_in_every_backup(tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    append(files, 10)
    closed = [path.name for _, path in segments(tmp_path / "audit" / "log")[:-1]]
    before = dict(SavedLog(tmp_path / "audit").files())
    append(files, 10)
    after = dict(SavedLog(tmp_path / "audit").files())
    files.close()
    assert len(closed) >= 2
    assert all(before[f"log/{name}"] == after[f"log/{name}"] for name in closed)


def test_a_log_that_lacks_records_is_not_saved(tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    files.close()
    (tmp_path / "audit" / "checkpoints" / CHECKPOINTS_NAME).write_bytes(b"")
    with pytest.raises(AuditLogError, match="no checkpoint"):
        SavedLog(tmp_path / "audit")
    files = audit_files(tmp_path / "other", segment_bytes=SEGMENT)
    append(files, 10)
    files.close()
    found = segments(tmp_path / "other" / "log")
    for gone in (found[1][1], found[-1][1]):
        kept = gone.rename(tmp_path / "kept")
        with pytest.raises(AuditLogError, match=r"does not hold records|are missing"):
            list(SavedLog(tmp_path / "other").files())
        kept.rename(gone)
    content = found[0][1].read_bytes()
    found[0][1].write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(AuditLogError, match="does not hold records 1 to"):
        list(SavedLog(tmp_path / "other").files())


def test_a_saved_log_that_was_changed_is_refused(tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    append(files, 4)
    saved(tmp_path / "audit", tmp_path / "saved")
    files.close()
    with pytest.raises(AuditLogError, match="4 records"):
        check(tmp_path / "saved", 5)
    path = tmp_path / "saved" / "checkpoints" / CHECKPOINTS_NAME
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"10:00:00", b"11:00:00"))
    with pytest.raises(AuditLogError, match="bad signature"):
        check(tmp_path / "saved", 4)
    path.write_bytes(whole)
    first = segments(tmp_path / "saved" / "log")[0][1]
    first.write_bytes(first.read_bytes().replace(b'"r2"', b'"x2"'))
    with pytest.raises(AuditLogError, match="does not match its hash"):
        check(tmp_path / "saved", 4)


def test_no_log_is_put_over_another(tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit", segment_bytes=SEGMENT)
    append(files, 4)
    saved(tmp_path / "audit", tmp_path / "saved")
    files.close()
    with pytest.raises(AuditLogError, match="not empty"):
        check_room(tmp_path / "audit")
    other = audit_files(tmp_path / "other")
    other.close()
    check_room(tmp_path / "empty")
    with pytest.raises(AuditLogError, match="another key"):
        check_key(tmp_path / "saved", tmp_path / "other")
    check_key(tmp_path / "saved", tmp_path / "audit")
    check_key(tmp_path / "saved", tmp_path / "empty")
    move_into(tmp_path / "saved", tmp_path / "empty")
    check(tmp_path / "empty", 4)
