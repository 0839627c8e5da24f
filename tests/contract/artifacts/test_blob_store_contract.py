"""What every blob store promises."""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from pathlib import Path

import pytest

from libs.artifacts import BlobCorrupt, BlobNotFound, BlobStore, get_file


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def put(store: BlobStore, content: bytes) -> str:
    assert await store.put(sha256(content), io.BytesIO(content))
    return sha256(content)


async def content_of(store: BlobStore, digest: str) -> bytes:
    sink = io.BytesIO()
    assert await store.get(digest, sink) == len(sink.getvalue())
    return sink.getvalue()


async def digests(store: BlobStore) -> set[str]:
    return {info.digest async for info in store.blobs()}


async def aside(store: BlobStore) -> set[str]:
    return {info.digest async for info in store.aside()}


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
async def test_what_was_put_is_got(store: BlobStore, tmp_path: Path, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    source = tmp_path / "source"
    source.write_bytes(content)
    assert await store.put(sha256(content), source)
    assert await content_of(store, sha256(content)) == content


async def test_a_stream_is_taken_from_where_it_stands(store: BlobStore) -> None:
    stream = io.BytesIO(b"headerbody")
    stream.seek(6)
    assert await store.put(sha256(b"body"), stream)
    assert await content_of(store, sha256(b"body")) == b"body"


async def test_again_is_nothing_new(store: BlobStore) -> None:
    digest = await put(store, b"once")
    assert not await store.put(digest, io.BytesIO(b"once"))
    assert await digests(store) == {digest}


async def test_the_first_of_many_writers_is_enough(store: BlobStore) -> None:
    content = b"x" * 70_000
    await asyncio.gather(*(store.put(sha256(content), io.BytesIO(content)) for _ in range(8)))
    assert await content_of(store, sha256(content)) == content
    assert await digests(store) == {sha256(content)}


async def test_other_bytes_than_the_digest_says_are_not_stored(store: BlobStore) -> None:
    with pytest.raises(BlobCorrupt):
        await store.put(sha256(b"this"), io.BytesIO(b"that"))
    assert await digests(store) == set()
    assert await store.stat(sha256(b"this")) is None


async def test_what_is_missing(store: BlobStore) -> None:
    digest = sha256(b"missing")
    with pytest.raises(BlobNotFound, match=digest[:12]):
        await store.get(digest, io.BytesIO())
    assert await store.stat(digest) is None
    assert not await store.set_aside(digest)
    assert not await store.restore(digest)
    await store.discard(digest)
    assert await store.clean(time.time() + 60) == 0


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
async def test_only_digests_are_names(store: BlobStore, digest: str) -> None:
    for use in (store.stat, store.set_aside, store.restore, store.discard):
        with pytest.raises(ValueError, match="64"):
            await use(digest)
    with pytest.raises(ValueError, match="64"):
        await store.put(digest, io.BytesIO(b""))
    with pytest.raises(ValueError, match="64"):
        await store.get(digest, io.BytesIO())


async def test_size_and_age(store: BlobStore) -> None:
    before = time.time()
    digest = await put(store, b"12345")
    found = await store.stat(digest)
    listed = [info async for info in store.blobs()]
    assert found is not None
    assert listed == [found]
    assert (found.digest, found.size) == (digest, 5)
    # S3 tells whole seconds.
    assert before - 1 <= found.touched_at <= time.time() + 1


async def test_many_are_listed(store: BlobStore) -> None:
    """More than two pages of this S3 server, through many shards."""
    wanted = await asyncio.gather(*(put(store, b"blob %d" % number) for number in range(50)))
    assert await digests(store) == set(wanted)
    assert len({digest[:2] for digest in wanted}) > 10


async def test_small_things_are_kept_once_under_their_names(store: BlobStore) -> None:
    assert await store.first_kept("anchors/a/") is None
    for number in (8, 9):
        assert await store.keep(f"anchors/a/{number}", b"kept %d" % number)
    assert await store.keep("anchors/a/7", b"kept 7")
    assert await store.keep("anchors/b/1", b"another's")
    assert not await store.keep("anchors/a/7", b"not this")
    assert await store.first_kept("anchors/a/") == ("anchors/a/7", b"kept 7")
    assert await digests(store) == set()


async def test_aside_and_back(store: BlobStore) -> None:
    kept, moved = await put(store, b"kept"), await put(store, b"moved")
    assert await store.set_aside(moved)
    assert (await digests(store), await aside(store)) == ({kept}, {moved})
    assert await store.stat(moved) is None
    with pytest.raises(BlobNotFound):
        await store.get(moved, io.BytesIO())
    assert await store.restore(moved)
    assert (await digests(store), await aside(store)) == ({kept, moved}, set())
    assert await content_of(store, moved) == b"moved"


async def test_what_is_aside_can_be_put_anew_and_both_end_as_one(store: BlobStore) -> None:
    digest = await put(store, b"wanted again")
    await store.set_aside(digest)
    assert await store.put(digest, io.BytesIO(b"wanted again"))
    assert await store.restore(digest)
    assert (await digests(store), await aside(store)) == ({digest}, set())
    assert await content_of(store, digest) == b"wanted again"


async def test_what_is_discarded_is_gone(store: BlobStore) -> None:
    digest = await put(store, b"gone")
    await store.set_aside(digest)
    await store.discard(digest)
    assert await aside(store) == set()
    assert not await store.restore(digest)


async def test_a_file_is_whole_or_as_it_was(store: BlobStore, tmp_path: Path) -> None:
    digest = await put(store, b"content")
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    await get_file(store, digest, path, size=7)
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o444
    for wrong_size in (6, 8):
        with pytest.raises(BlobCorrupt):
            await get_file(store, digest, path, size=wrong_size)
    with pytest.raises(BlobNotFound):
        await get_file(store, sha256(b"missing"), path, size=7)
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"content"


async def test_a_source_that_cannot_be_read_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await store.put(sha256(b"x"), tmp_path / "nowhere")
    assert await digests(store) == set()
