"""Tokenizers of versions in the blob store: here before their traffic, checked, retried, bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2

from libs.artifacts import BLOBS, BlobStoreUnavailable, LocalBlobStore, Options, push
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.texts import TextStore
from libs.texts import store as text_store
from tests.support.tokenizer import artifacts_in, write_byte_tokenizer


class Flaky(LocalBlobStore):
    """A local store that a test can take away or hold up."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.away = False
        self.reads = 0
        self.go = asyncio.Event()
        self.go.set()

    async def get(self, digest: str, sink: Any) -> int:
        self.reads += 1
        await self.go.wait()
        if self.away:
            raise BlobStoreUnavailable("away")
        return await super().get(digest, sink)


class Site:
    """A blob store with versions, and a gateway's store of tokenizers."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, max_bytes: int = 2**20) -> None:
        self.tmp = tmp_path
        self.blobs = Flaky(tmp_path / "blobs")
        self.clock = ManualClock()
        self.folder = tmp_path / "state" / "model-files"
        monkeypatch.setattr(text_store, "open_store", lambda uri: self.blobs)
        self.texts = self.store(max_bytes)

    def store(self, max_bytes: int = 2**20) -> TextStore:
        return TextStore(
            blobs="file:///blobs",
            directory=self.folder,
            max_bytes=max_bytes,
            clock=self.clock,
            chance=lambda: 0.0,
        )

    async def version(self, number: int, *, filler: int = 1) -> registry_pb2.ModelVersion:
        folder = self.tmp / f"v{number}"
        folder.mkdir()
        write_byte_tokenizer(folder)
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}')
        (folder / "model.safetensors").write_bytes(b"w" * 1000)
        (folder / "merges.txt").write_text(str(number) * filler)
        pushed = await push(folder, self.blobs, Options(name="tiny", version=str(number), pool="p", tier="fast"))
        assert pushed.version.source == BLOBS
        return pushed.version


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    made = Site(tmp_path, monkeypatch)
    yield made
    await made.texts.aclose()


async def test_only_what_words_need_is_fetched_once(site: Site) -> None:
    version = await site.version(1)
    one, two = await asyncio.gather(site.texts.load(version), site.texts.load(version))
    assert one is two
    assert one.encode("hi") == list(b"hi")
    held = {path.name for path in (site.folder / version.digest).iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= held
    assert "model.safetensors" not in held
    reads = site.blobs.reads
    assert await site.texts.load(version) is one
    other = site.store()  # the gateway starts again: what is there and right is not fetched
    await other.load(version)
    assert site.blobs.reads == reads
    await other.aclose()


async def test_it_begins_when_the_registry_shows_the_version(site: Site) -> None:
    version = await site.version(1)
    site.texts.want([version], {version.digest})
    async with asyncio.timeout(10):
        while version.digest not in site.texts._loaded:  # noqa: ASYNC110 - files on a disk
            await asyncio.sleep(0.01)
    site.texts.want([], set())
    assert not site.texts._loaded


async def test_a_request_waits_for_the_files_within_its_deadline(site: Site) -> None:
    version = await site.version(1)
    site.blobs.go.clear()
    with pytest.raises(WeirError) as late:
        await site.texts.load(version, 0.01)
    assert (late.value.reason, late.value.limit) == (Reason.DEADLINE_EXCEEDED, "model_files")
    waiting = asyncio.ensure_future(site.texts.load(version, 10))
    site.blobs.go.set()
    assert (await waiting).encode("x") == list(b"x")


async def test_a_failed_fetch_is_told_and_tried_again_later(site: Site) -> None:
    version = await site.version(1)
    site.blobs.away = True
    site.texts.want([version], {version.digest})
    with pytest.raises(WeirError) as first:
        await site.texts.load(version)
    assert (first.value.reason, first.value.limit) == (Reason.DEPENDENCY_UNAVAILABLE, "model_files")
    reads = site.blobs.reads
    site.clock.advance(0.4)
    site.texts.sweep()
    with pytest.raises(WeirError) as meanwhile:
        await site.texts.load(version)
    assert meanwhile.value.retry_after == pytest.approx(0.1)
    assert site.blobs.reads == reads
    site.blobs.away = False
    site.clock.advance(0.2)
    site.texts.sweep()
    assert (await site.texts.load(version)).encode("x") == list(b"x")


async def test_pauses_between_attempts_grow_up_to_the_longest(site: Site) -> None:
    version = await site.version(1)
    site.blobs.away = True
    pauses = []
    for _ in range(9):
        with pytest.raises(WeirError):
            await site.texts.load(version)
        with pytest.raises(WeirError) as told:
            await site.texts.load(version)
        assert told.value.retry_after is not None
        pauses.append(told.value.retry_after)
        site.clock.advance(told.value.retry_after + 1e-6)
    assert pauses == [pytest.approx(each) for each in (0.5, 1, 2, 4, 8, 16, 30, 30, 30)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", '{"chat_template": [{"name": "rag", "template": "x"}]}'),
        ("tokenizer_config.json", "[]"),
        ("chat_template.jinja", "{% for a in b %}" * 30 + "{% endfor %}" * 30),
        ("chat_template.jinja", "{{ 1" + "0" * 5000 + " }}"),
        ("chat_template.json", "[]"),
    ],
)
async def test_a_template_that_cannot_be_used_is_told_and_not_tried_again_at_once(
    site: Site, tmp_path: Path, name: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: each request, and each look twice a second, made a new attempt, and nothing was logged."""
    folder = tmp_path / "bad"
    folder.mkdir()
    write_byte_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / name).write_text(content)
    version = registry_pb2.ModelVersion(
        name="bad", version="1", digest="d", source=str(folder), artifacts=artifacts_in(folder)
    )
    logged: list[str] = []
    monkeypatch.setattr(text_store, "log", SimpleNamespace(error=lambda event, **said: logged.append(event)))
    for _ in range(3):
        with pytest.raises(WeirError, match="cannot be tokenised here") as told:
            await site.texts.load(version)
        assert (told.value.reason, told.value.limit) == (Reason.INTERNAL, "model_files")
    assert told.value.retry_after == pytest.approx(0.5)
    assert logged == ["tokenizer_not_loaded"]


async def test_other_bytes_than_the_records_are_refused(site: Site) -> None:
    version = await site.version(1)
    damaged = next(each for each in version.artifacts if each.path == "tokenizer.json")
    blob = site.blobs._path(damaged.sha256)
    os.chmod(blob, 0o644)
    blob.write_bytes(blob.read_bytes().replace(b"{", b"[", 1))
    with pytest.raises(WeirError) as refused:
        await site.texts.load(version)
    assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert not (site.folder / version.digest).exists()


async def test_the_folder_is_bounded_and_the_longest_unused_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, max_bytes=150_000)
    versions = [await site.version(number, filler=60_000) for number in range(1, 5)]
    for version in versions:
        await site.texts.load(version)
    kept = {path.name for path in site.folder.iterdir() if not path.name.startswith(".")}
    assert versions[-1].digest in kept
    assert versions[0].digest not in kept
    assert sum(path.stat().st_size for path in site.folder.rglob("*") if path.is_file()) <= 150_000
    assert (await site.texts.load(versions[0])).encode("x") == list(b"x")  # in memory still
    await site.texts.aclose()


async def test_without_a_blob_store_the_error_says_that_files_are_missing(tmp_path: Path) -> None:
    texts = TextStore(blobs="", directory=tmp_path, max_bytes=0, clock=ManualClock(), chance=lambda: 0.0)
    with pytest.raises(WeirError) as refused:
        await texts.load(registry_pb2.ModelVersion(name="tiny", version="1", digest="d", source=BLOBS))
    assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    await texts.aclose()
