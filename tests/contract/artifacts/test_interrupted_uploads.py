"""An upload that was interrupted goes on where it stopped, in a directory and in a bucket."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import hypothesis.strategies as st
import pytest
from hypothesis import given

from libs.artifacts import BlobCorrupt, BlobStoreUnavailable, LocalBlobStore
from libs.artifacts.local import _claimed
from libs.artifacts.s3 import S3BlobStore

MIB = 1 << 20
PART = 5 * MIB


class Interrupted(Exception):
    """What a test interrupts with."""


class Counted:
    """Is told of bytes, and interrupts after some."""

    def __init__(self, most: float = float("inf")) -> None:
        self.count, self.most = 0, most

    def __call__(self, count: int) -> None:
        self.count += count
        if self.count >= self.most:
            raise Interrupted


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def made(path: Path, size: int) -> tuple[Path, bytes, str]:
    content = (os.urandom(1021) * (size // 1021 + 1))[:size]
    path.write_bytes(content)
    return path, content, sha256(content)


async def content_of(store: Any, digest: str) -> bytes:
    sink = io.BytesIO()
    await store.get(digest, sink)
    return sink.getvalue()


async def test_a_file_of_a_directory_goes_on(tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 5 * MIB + 7)
    store = LocalBlobStore(tmp_path / "blobs")
    with pytest.raises(Interrupted):
        await store.put(digest, source, Counted(3 * MIB))
    part = tmp_path / "blobs" / "tmp" / f"{digest}.part"
    begun = part.stat()
    assert begun.st_size == 3 * MIB
    assert await store.stat(digest) is None
    told = Counted()
    assert await store.put(digest, source, told)
    assert (await content_of(store, digest), told.count) == (content, len(content))
    stored = (tmp_path / "blobs" / "sha256" / digest[:2] / digest).stat()
    assert (stored.st_ino, stored.st_mode & 0o777) == (begun.st_ino, 0o444)
    assert os.listdir(part.parent) == []


@given(content=st.binary(max_size=64), left=st.binary(max_size=64), cut=st.integers(0, 64))
def test_whatever_was_left_what_is_stored_is_whole(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, left: bytes, cut: int
) -> None:
    """Also where a machine lost power, or a file of the same name had other bytes."""
    place = tmp_path_factory.mktemp("blobs")
    (place / "source").write_bytes(content)
    (place / "tmp").mkdir()
    for begun in (content[:cut], left):
        (place / "tmp" / f"{sha256(content)}.part").write_bytes(begun)
        store = LocalBlobStore(place)
        assert asyncio.run(store.put(sha256(content), place / "source"))
        assert asyncio.run(content_of(store, sha256(content))) == content
        (place / "sha256" / sha256(content)[:2] / sha256(content)).unlink()


async def test_other_bytes_leave_nothing_behind(tmp_path: Path) -> None:
    source, _, _ = made(tmp_path / "source", 100)
    store = LocalBlobStore(tmp_path / "blobs")
    with pytest.raises(BlobCorrupt):
        await store.put("0" * 64, source)
    assert os.listdir(tmp_path / "blobs" / "tmp") == []


async def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 3 * MIB)
    store = LocalBlobStore(tmp_path / "blobs")
    part = tmp_path / "blobs" / "tmp" / f"{digest}.part"
    part.parent.mkdir(parents=True)
    with part.open("w+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"what somebody else writes")
        other.flush()
        assert await store.put(digest, source)
        assert await content_of(store, digest) == content
        assert part.read_bytes() == b"what somebody else writes"


async def test_a_part_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    """Another person's, in a directory that several share; here a link, since root may open any file."""
    source, content, digest = made(tmp_path / "source", 100)
    part = tmp_path / "blobs" / "tmp" / f"{digest}.part"
    part.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("theirs")
    part.symlink_to(tmp_path / "elsewhere")
    store = LocalBlobStore(tmp_path / "blobs")
    assert await store.put(digest, source)
    assert await content_of(store, digest) == content
    assert (part.is_symlink(), (tmp_path / "elsewhere").read_text()) == (True, "theirs")


def test_a_part_that_has_become_the_blob_is_nobodys(tmp_path: Path) -> None:
    """Whoever opened it just before, and got the lock just after."""
    part = tmp_path / "part"
    with part.open("w+b") as opened:
        assert _claimed(opened.fileno(), part)
        part.rename(tmp_path / "blob")
        assert not _claimed(opened.fileno(), part)
        part.write_bytes(b"another's")
        assert not _claimed(opened.fileno(), part)


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from libs.artifacts import LocalBlobStore
count = 0
def told(more):
    global count
    count += more
    if count >= 2 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(LocalBlobStore(Path(sys.argv[1])).put(sys.argv[2], Path(sys.argv[3]), told))
"""


async def test_a_process_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 4 * MIB)
    words = [sys.executable, "-c", _KILLED, str(tmp_path / "blobs"), digest, str(source)]
    assert (await asyncio.to_thread(subprocess.run, words, check=False)).returncode == -signal.SIGKILL
    inode = (tmp_path / "blobs" / "tmp" / f"{digest}.part").stat().st_ino
    store = LocalBlobStore(tmp_path / "blobs")
    assert await store.put(digest, source)
    assert await content_of(store, digest) == content
    assert (tmp_path / "blobs" / "sha256" / digest[:2] / digest).stat().st_ino == inode


class Bucket(S3BlobStore):
    """Counts the parts that are sent."""

    sent = 0
    refused = ""

    def _call(self, operation: str, **parameters: Any) -> Any:
        self.sent += operation == "upload_part"
        if operation == self.refused:
            raise BlobStoreUnavailable("AccessDenied")
        return super()._call(operation, **parameters)


def bucket(s3_uri: str) -> Bucket:
    return Bucket("models", endpoint=s3_uri.partition("endpoint=")[2], part_bytes=PART)


def uploads(s3_uri: str) -> list[Any]:
    client = boto3.client("s3", endpoint_url=s3_uri.partition("endpoint=")[2])
    try:
        return list(client.list_multipart_uploads(Bucket="models").get("Uploads", ()))
    finally:
        client.close()


async def test_an_upload_in_parts_goes_on(s3_uri: str, tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 25 * MIB + 3)
    first, second = bucket(s3_uri), bucket(s3_uri)
    with pytest.raises(Interrupted):
        await first.put(digest, source, Counted(2 * PART))
    assert 2 <= first.sent <= 6
    assert len(uploads(s3_uri)) == 1
    told = Counted()
    assert await second.put(digest, source, told)
    assert (first.sent + second.sent, told.count) == (6, len(content))
    assert await content_of(second, digest) == content
    assert uploads(s3_uri) == []
    for store in (first, second):
        await store.close()


async def test_parts_of_other_bytes_are_sent_again(s3_uri: str, tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 11 * MIB)
    store = bucket(s3_uri)
    upload = store._call("create_multipart_upload", Key=store._key(digest))["UploadId"]
    for number, body in ((1, b"x" * PART), (2, content[PART : 2 * PART])):
        store._call("upload_part", Key=store._key(digest), UploadId=upload, PartNumber=number, Body=body)
    store.sent = 0
    assert await store.put(digest, source)
    assert store.sent == 2
    assert await content_of(store, digest) == content
    await store.close()


async def test_who_may_not_list_uploads_sends_all_of_it(s3_uri: str, tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 11 * MIB)
    store = bucket(s3_uri)
    store.refused = "list_multipart_uploads"
    assert await store.put(digest, source)
    assert await content_of(store, digest) == content
    await store.close()


async def test_somebody_else_who_ends_the_same_upload_is_no_fault(s3_uri: str, tmp_path: Path) -> None:
    source, content, digest = made(tmp_path / "source", 11 * MIB)
    store, other = bucket(s3_uri), bucket(s3_uri)
    with pytest.raises(Interrupted):
        await store.put(digest, source, Counted(PART))
    stores = [bucket(s3_uri) for _ in range(3)]
    assert all(await asyncio.gather(*(each.put(digest, source) for each in stores)))
    assert await content_of(store, digest) == content
    for each in (store, other, *stores):
        await each.close()
