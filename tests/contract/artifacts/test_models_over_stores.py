"""Whole models through both blob stores: pushed, fetched, collected."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import BlobStore, FetchError, Options, check_blobs, fetch, full_name, make_key, push, verify
from libs.artifacts.gc import Collected, collect
from libs.registry import RegistrySnapshot

OPTIONS = Options(name="m", tier="fast", pool="p", architecture="A", context_length=8)
DAY = 86400.0


class Registry:
    """Just enough of one."""

    def __init__(self) -> None:
        self.snapshot = RegistrySnapshot(revision=1)

    async def register(self, version: pb.ModelVersion, dry_run: bool) -> pb.ModelVersion:
        if not dry_run:
            version.created_at.GetCurrentTime()
            versions = {**self.snapshot.model_versions, full_name(version): version}
            self.snapshot = replace(self.snapshot, model_versions=MappingProxyType(versions))
        return version

    async def read(self) -> RegistrySnapshot:
        return self.snapshot

    async def delete(self, name: str) -> str:
        versions = {key: value for key, value in self.snapshot.model_versions.items() if key != name}
        self.snapshot = replace(self.snapshot, model_versions=MappingProxyType(versions))
        return ""


def model(folder: Path, weights: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text(weights)
    (folder / "tokenizer.json").write_text("shared")
    return folder


async def test_there_and_back(store: BlobStore, tmp_path: Path) -> None:
    key = make_key()
    pushed = await push(model(tmp_path / "m", "weights"), store, replace(OPTIONS, version="1"), [key])
    verify(pushed.version, pb.TrustPolicy(namespace="default", keys=[key.trusted()]), time.time())
    done = await fetch(pushed.version, store, tmp_path / "fetched")
    assert (done.fetched, (done.folder / "model.safetensors").read_text()) == (2, "weights")
    assert (await fetch(pushed.version, store, tmp_path / "fetched")).fetched == 0


async def test_repair(store: BlobStore, tmp_path: Path, damage: Callable[[str, bytes], Awaitable[None]]) -> None:
    """A damaged blob of the right length is not noticed by a push, unless it is told to look."""
    options = replace(OPTIONS, version="1")
    folder = model(tmp_path / "m", "weights")
    version = (await push(folder, store, options)).version
    await damage(version.artifacts[0].sha256, b"wEights")
    assert (await push(folder, store, options)).uploaded == 0
    with pytest.raises(FetchError, match="model"):
        await check_blobs(version, store)
    assert (await push(folder, store, options, repair=True)).uploaded == 1
    await check_blobs(version, store)


async def test_collection(store: BlobStore, tmp_path: Path) -> None:
    """Of three versions one is needed: the others' weights go, the tokenizer that all share stays."""
    registry = Registry()
    for number in range(3):
        folder = model(tmp_path / "m", f"weights {number}")
        await push(folder, store, replace(OPTIONS, version=str(number)), register=registry.register)
    alias = pb.Alias(name="a", targets=[pb.AliasTarget(model_version="m@1", weight=100)])
    registry.snapshot = replace(registry.snapshot, aliases=MappingProxyType({"a": alias}))

    async def run(later: float, *, dry_run: bool = False) -> Collected:
        return await collect(
            store,
            read=registry.read,
            delete=registry.delete,
            clock=lambda: time.time() + later,
            keep=0,
            dry_run=dry_run,
        )

    assert (await run(DAY / 2)).blobs == ()
    planned = await run(8 * DAY, dry_run=True)
    assert (planned.versions, len(planned.blobs)) == (("m@0", "m@2"), 2)
    done = await run(8 * DAY)
    assert set(done.versions) == {"m@0", "m@2"}
    assert {blob.digest for blob in done.blobs} == {blob.digest for blob in planned.blobs}
    assert [info async for info in store.aside()] == []
    assert len([info async for info in store.blobs()]) == 2
    await fetch(registry.snapshot.model_versions["m@1"], store, tmp_path / "fetched")
    assert (await run(9 * DAY)).blobs == ()
