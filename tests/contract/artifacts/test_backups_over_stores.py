"""Backups in both blob stores: the audit log's part, which needs no etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.artifacts import BlobCorrupt, BlobNotFound, BlobStore
from libs.backup import ManifestError, NoBackupError, fetch, latest, load, save
from tests.support.auditfolder import append, audit_files

Damage = Callable[[str, bytes], Awaitable[None]]
NOW = 1_700_000_000.0


async def test_the_newest_is_found_and_older_ones_by_their_ids(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(NoBackupError):
        await latest(store)
    files = audit_files(tmp_path / "audit")
    made = []
    for number in range(3):
        append(files, 2)
        made.append((await save(store, now=NOW + number, audit=tmp_path / "audit"))[0])
    files.close()
    assert await latest(store) == made[-1]
    manifests = [await load(store, each) for each in made]
    assert [each.previous for each in manifests] == ["", *made[:-1]]
    for number, manifest in enumerate(manifests):
        assert manifest.audit is not None
        assert manifest.audit.records == 2 * (number + 1)
        await fetch(store, manifest, tmp_path / f"restored-{number}")
    with pytest.raises(NoBackupError):
        await load(store, "0" * 64)
    with pytest.raises(ManifestError):
        await load(store, "latest")


async def test_a_changed_byte_is_found(store: BlobStore, damage: Damage, tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit")
    append(files, 2)
    files.close()
    made, manifest = await save(store, now=NOW, audit=tmp_path / "audit")
    for piece in manifest.pieces:
        await damage(piece.sha256, b"x" * piece.size)
        with pytest.raises(BlobCorrupt):
            await fetch(store, manifest, tmp_path / piece.sha256)
    await damage(made, b"{}")
    with pytest.raises(BlobCorrupt):
        await load(store, made)


async def test_a_file_that_is_gone_is_told(store: BlobStore, tmp_path: Path) -> None:
    files = audit_files(tmp_path / "audit")
    append(files, 2)
    files.close()
    _, manifest = await save(store, now=NOW, audit=tmp_path / "audit")
    await store.set_aside(manifest.pieces[-1].sha256)
    with pytest.raises(BlobNotFound):
        await fetch(store, manifest, tmp_path / "restored")
