"""What is particular to a directory, to a bucket, and to their addresses."""

from __future__ import annotations

import hashlib
import io
import os
import time
from pathlib import Path

import boto3
import pytest

from libs.artifacts import BlobCorrupt, BlobStoreUnavailable, BlobUriError, LocalBlobStore, open_store
from libs.artifacts.s3 import S3BlobStore

MIB = 1 << 20


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_local_layout(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    digest = sha256(b"content")
    await store.put(digest, io.BytesIO(b"content"))
    path = tmp_path / "blobs" / "sha256" / digest[:2] / digest
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o444


async def test_local_blob_changed_on_disk(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    digest = sha256(b"content")
    await store.put(digest, io.BytesIO(b"content"))
    path = tmp_path / "sha256" / digest[:2] / digest
    path.chmod(0o644)
    path.write_bytes(b"CONTENT")
    with pytest.raises(BlobCorrupt):
        await store.get(digest, io.BytesIO())


async def test_a_blob_cut_short_is_replaced_by_the_next_push_of_its_file(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    source = tmp_path / "source"
    source.write_bytes(b"content")
    digest = sha256(b"content")
    await store.put(digest, source)
    path = tmp_path / "blobs" / "sha256" / digest[:2] / digest
    path.chmod(0o644)
    path.write_bytes(b"con")
    assert await store.put(digest, source)
    sink = io.BytesIO()
    await store.get(digest, sink)
    assert sink.getvalue() == b"content"


async def test_local_age_is_new_after_another_put(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    digest = sha256(b"content")
    await store.put(digest, io.BytesIO(b"content"))
    os.utime(tmp_path / "sha256" / digest[:2] / digest, (1, 1))
    before = time.time()
    assert not await store.put(digest, io.BytesIO(b"content"))
    found = await store.stat(digest)
    assert found is not None
    assert found.touched_at >= before - 0.01


async def test_local_remains_of_uploads(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    await store.put(sha256(b"content"), io.BytesIO(b"content"))
    (tmp_path / "tmp" / "old").write_bytes(b"half")
    (tmp_path / "tmp" / "new").write_bytes(b"half")
    os.utime(tmp_path / "tmp" / "old", (1, 1))
    assert await store.clean(time.time() - 60) == 1
    assert [each.name for each in (tmp_path / "tmp").iterdir()] == ["new"]


async def test_local_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    store = LocalBlobStore(tmp_path / "file")
    with pytest.raises(BlobStoreUnavailable):
        await store.put(sha256(b"x"), io.BytesIO(b"x"))


@pytest.mark.parametrize("size", [5 * MIB - 1, 5 * MIB, 13 * MIB + 5])
async def test_s3_in_parts(s3_uri: str, size: int) -> None:
    content = os.urandom(1021) * (size // 1021 + 1)
    content = content[:size]
    store = S3BlobStore("models", endpoint=s3_uri.partition("endpoint=")[2], part_bytes=5 * MIB)
    assert await store.put(sha256(content), io.BytesIO(content))
    sink = io.BytesIO()
    await store.get(sha256(content), sink)
    assert sink.getvalue() == content
    assert not await store.put(sha256(content), io.BytesIO(content))
    await store.close()


async def test_s3_parts_of_other_bytes_are_given_up(s3_uri: str) -> None:
    endpoint = s3_uri.partition("endpoint=")[2]
    store = S3BlobStore("models", endpoint=endpoint, part_bytes=5 * MIB)
    with pytest.raises(BlobCorrupt):
        await store.put("0" * 64, io.BytesIO(b"x" * (11 * MIB)))
    await store.close()
    client = boto3.client("s3", endpoint_url=endpoint)
    assert "Uploads" not in client.list_multipart_uploads(Bucket="models")
    client.close()


async def test_s3_remains_of_uploads(s3_uri: str) -> None:
    client = boto3.client("s3", endpoint_url=s3_uri.partition("endpoint=")[2])
    client.create_multipart_upload(Bucket="models", Key="some/where/sha256/ab/" + "ab" * 32)
    store = open_store(s3_uri)
    assert await store.clean(time.time() - 3600 * 24 * 365 * 50) == 0
    assert await store.clean(time.time() + 3600) == 1
    assert "Uploads" not in client.list_multipart_uploads(Bucket="models")
    await store.close()
    client.close()


async def test_s3_blob_changed_in_its_bucket(s3_uri: str) -> None:
    store = open_store(s3_uri)
    digest = sha256(b"content")
    await store.put(digest, io.BytesIO(b"content"))
    client = boto3.client("s3", endpoint_url=s3_uri.partition("endpoint=")[2])
    client.put_object(Bucket="models", Key=f"some/where/sha256/{digest[:2]}/{digest}", Body=b"CONTENT")
    client.close()
    with pytest.raises(BlobCorrupt):
        await store.get(digest, io.BytesIO())
    await store.close()


async def test_s3_without_a_bucket_or_a_server(s3_uri: str) -> None:
    endpoint = s3_uri.partition("endpoint=")[2]
    store = open_store(f"s3://elsewhere?endpoint={endpoint}")
    with pytest.raises(BlobStoreUnavailable, match="NoSuchBucket"):
        await store.put(sha256(b"x"), io.BytesIO(b"x"))
    await store.close()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/a/path",
        "blobs:",
        "http://host/path",
        "file://host/path",
        "file:relative",
        "file:///path?x=1",
        "s3://",
        "s3://user:secret@bucket",
        "s3://bucket?region",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://user:secret@host",
        "s3://bucket?aws_secret_access_key=secret",
        "s3://bucket#fragment",
    ],
)
def test_addresses_that_make_no_sense(uri: str) -> None:
    with pytest.raises(BlobUriError) as caught:
        open_store(uri)
    assert "secret@" not in str(caught.value)


def test_a_store_shows_no_credentials(s3_uri: str) -> None:
    shown = repr(open_store(s3_uri))
    assert "models" in shown
    assert "test" not in shown


def test_a_configuration_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this-profile")
    with pytest.raises(BlobStoreUnavailable, match="ProfileNotFound"):
        open_store("s3://bucket")
