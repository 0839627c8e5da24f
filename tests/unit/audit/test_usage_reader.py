"""Sums over a log on the disk: added up once whoever leaves, saved in time, and never taken for more than they are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from weir.audit.v1 import audit_pb2

from libs.auditlog import AuditFiles, Incoming
from libs.auditlog.layout import segments
from libs.errors import Reason, WeirError
from services.audit import usage
from services.audit.sealing import Opened
from services.audit.usage import UsageReader
from tests.support.auditfolder import audit_files

ALL = audit_pb2.UsageRequest(by=["day"])


def append(files: AuditFiles, *days: int) -> None:
    """A request on each of these days of November."""
    for day in days:
        name = f"r{files.count + 1}"
        event = {"request_id": name, "tenant": "acme", "outcome": "stop", "completion_tokens": 4}
        body = {"id": name, "time": f"2026-11-{day:02d}T10:00:00Z", "request": event}
        files.commit([Incoming(name, json.dumps(body, separators=(",", ":")).encode())])


@contextmanager
def reading(folder: Path, files: AuditFiles) -> Iterator[UsageReader]:
    reader = UsageReader(
        folder / "log", folder / "usage.state", count=lambda: files.count, opened=lambda _: Opened(None)
    )
    try:
        yield reader
    finally:
        reader.close()


def tokens(answer: audit_pb2.UsageResponse) -> dict[str, int]:
    return {row.values[0][-2:]: row.completion_tokens for row in answer.rows}


async def test_a_question_that_is_given_up_adds_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = audit_files(tmp_path)
    inside, go, read, added = threading.Event(), threading.Event(), usage.read, list[bytes]()

    def held(record: bytes) -> object:
        added.append(record)
        if not inside.is_set():
            inside.set()
            go.wait(20)
        return read(record)

    with reading(tmp_path, files) as reader:
        append(files, 1)
        assert tokens(await reader.usage(ALL)) == {"01": 4}
        append(files, 2, 3)
        monkeypatch.setattr(usage, "read", held)
        given_up = asyncio.create_task(reader.usage(ALL))
        await asyncio.to_thread(inside.wait, 20)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        again = asyncio.create_task(reader.usage(ALL))
        await asyncio.wait((again,), timeout=0.3)  # it is not to be done while the first one is at it
        go.set()
        assert tokens(await again) == {"01": 4, "02": 4, "03": 4}
        assert len(added) == len(set(added)) == 2
    files.close()


async def test_sums_are_saved_when_they_are_due_and_not_only_when_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_SAVE_EVERY", 3)
    monkeypatch.setattr(usage, "_LOOK_SECONDS", 0.01)
    files = audit_files(tmp_path)
    append(files, 1, 1, 2)
    with reading(tmp_path, files) as reader:
        running = asyncio.create_task(reader.run())
        async with asyncio.timeout(20):
            while not (tmp_path / "usage.state").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()
    files.close()


def set_aside(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in folder.glob("usage.state.before-*")]


def cut(folder: Path, files: AuditFiles, *, at: int) -> None:
    """The log without the segments before one."""
    files.truncate(segments(folder / "log")[at][0])


@pytest.mark.parametrize("damage", [b"\x01", b"", None, b"another log's"])
async def test_sums_of_what_was_cut_off_are_never_made_anew_in_silence(tmp_path: Path, damage: bytes | None) -> None:
    files = audit_files(tmp_path, segment_bytes=400)
    append(files, 1, 1, 2, 2, 3, 3, 4, 4)
    path, began = tmp_path / "usage.state", segments(tmp_path / "log")[2][0]
    with reading(tmp_path, files) as reader:
        await reader.keep()
        cut(tmp_path, files, at=2)
    with reading(tmp_path, files) as reader:  # by what was kept
        assert tokens(await reader.usage(ALL)) == {"01": 8, "02": 8, "03": 8, "04": 8}
    if damage is None:
        path.unlink()
    elif damage == b"another log's":
        other = audit_files(tmp_path / "other")
        append(other, *[9] * files.count)
        with reading(tmp_path / "other", other) as reader:
            await reader.keep()
        other.close()
        (tmp_path / "other" / "usage.state").rename(path)
        damage = path.read_bytes()
    else:
        path.write_bytes(damage)
    first = (began + 1) // 2 + 1  # the day behind the one of the first record that is left
    for _ in range(2):  # and after a restart
        with reading(tmp_path, files) as reader:
            with pytest.raises(WeirError, match=f"before 2026-11-{first:02d} are lost") as refused:
                await reader.usage(ALL)
            assert (refused.value.reason, refused.value.limit) == (Reason.NOT_FOUND, "first_day")
            left = audit_pb2.UsageRequest(by=["day"], first_day=f"2026-11-{first:02d}")
            assert tokens(await reader.usage(left)) == {f"{day:02d}": 8 for day in range(first, 5)}
            await reader.keep()
    assert set_aside(tmp_path) == ([] if damage is None else [damage])
    files.close()


async def test_sums_that_are_ahead_of_a_log_that_was_put_back_are_not_given(tmp_path: Path) -> None:
    files, former = audit_files(tmp_path), audit_files(tmp_path / "former")
    append(former, 1, 2)
    with reading(tmp_path / "former", former) as reader:
        await reader.keep()
    former.close()
    append(files, 1)
    (tmp_path / "former" / "usage.state").rename(tmp_path / "usage.state")
    with reading(tmp_path, files) as reader:
        assert tokens(await reader.usage(ALL)) == {"01": 4}
    files.close()
