"""EtcdStore through restarts, compaction, leader changes, a restore, and with TLS, on real etcd servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.authority.identity import Identity
from libs.authority.stores import ROOT_USER
from libs.backup import etcd as snapshot
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, Put, WatchBatch, WatchEvent, keys
from tests.support.certificates import tls_of
from tests.support.etcd import EtcdServer, EtcdTls, free_ports
from tests.support.guarded_etcd import guarded_etcd

PREFIX = "/t/"


async def put(store: EtcdStore, key: str, value: str) -> None:
    await eventually_put(store, PREFIX + key, value)


async def eventually_put(store: EtcdStore, key: str, value: str) -> None:
    """Writes, through elections and restarts; the writes of these tests may be repeated."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.txn(puts=[Put(key, value.encode())])
                return
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise


async def take(batches: AsyncGenerator[WatchBatch, None], count: int) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    async with asyncio.timeout(30):
        while len(events) < count:
            events += (await anext(batches)).events
    return events


def brief(events: list[WatchEvent]) -> list[tuple[str, bytes | None]]:
    return [(event.key[len(PREFIX) :], event.value) for event in events]


QUICK = 30.0
"""Seconds: the 4 that a call takes at most, on a machine that does other things meanwhile."""


async def test_unavailable_is_said_quickly(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    await put(store, "a", "1")
    etcd.stop()
    started = time.monotonic()
    calls = (store.get(PREFIX), store.get_prefix(PREFIX), store.txn(puts=[Put("/x", b"")]), store.lease_grant(5))
    for found in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(found, WeirError)
        assert found.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert time.monotonic() - started < QUICK
    assert not store.available
    etcd.start()
    await put(store, "a", "2")
    assert store.available
    await store.close()


async def test_hung_server_does_not_hang_the_caller(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    await put(store, "a", "1")
    etcd.pause()
    try:
        started = time.monotonic()
        with pytest.raises(WeirError) as caught:
            await store.get(PREFIX + "a")
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert time.monotonic() - started < QUICK
    finally:
        etcd.resume()
    assert await store.get(PREFIX + "a") is not None
    await store.close()


async def test_watch_survives_a_restart(etcd: EtcdServer) -> None:
    writer, watcher = EtcdStore([etcd.endpoint]), EtcdStore([etcd.endpoint])
    start = (await watcher.get_prefix(PREFIX)).revision + 1
    async with aclosing(watcher.watch(PREFIX, start)) as batches:
        await put(writer, "a", "1")
        assert brief(await take(batches, 1)) == [("a", b"1")]
        for n in range(3):
            etcd.restart()
            await put(writer, "b", f"{n}")
            await put(writer, "c", f"{n}")
            assert brief(await take(batches, 2)) == [("b", f"{n}".encode()), ("c", f"{n}".encode())]
    await writer.close()
    await watcher.close()


async def test_compaction_while_away_gives_the_difference(etcd: EtcdServer) -> None:
    writer, watcher = EtcdStore([etcd.endpoint]), EtcdStore([etcd.endpoint])
    start = (await watcher.get_prefix(PREFIX)).revision + 1
    async with aclosing(watcher.watch(PREFIX, start)) as batches:
        await put(writer, "gone", "1")
        await put(writer, "same", "1")
        assert len(await take(batches, 2)) == 2
        # The watch stands still: nobody reads it, its connection dies, history moves on and is dropped.
        etcd.restart()
        await put(writer, "new", "1")
        await put(writer, "new", "2")
        await writer.txn(deletes=[PREFIX + "gone"])
        last = await writer.txn(puts=[Put("/elsewhere", b"")])
        etcd.compact(last.revision)
        assert brief(await take(batches, 2)) == [("gone", None), ("new", b"2")]
        await put(writer, "after", "1")
        assert brief(await take(batches, 1)) == [("after", b"1")]
    await writer.close()
    await watcher.close()


async def test_restored_backup_is_noticed(etcd: EtcdServer, tmp_path: Path) -> None:
    store = EtcdStore([etcd.endpoint])
    start = (await store.get_prefix(PREFIX)).revision + 1
    await put(store, "old", "1")
    etcd.snapshot(tmp_path / "backup")
    await put(store, "old", "2")
    for n in range(5):
        await put(store, f"lost{n}", "1")
    async with aclosing(store.watch(PREFIX, start)) as batches:
        assert len(await take(batches, 7)) == 7
        etcd.stop()
        etcd.restore(tmp_path / "backup")
        etcd.start()
        events = brief(await take(batches, 6))
        assert events == [*((f"lost{n}", None) for n in range(5)), ("old", b"1")]
        await put(store, "old", "3")
        assert brief(await take(batches, 1)) == [("old", b"3")]
    await store.close()


@pytest.mark.parametrize("another", [False, True], ids=["another-term", "another-cluster"])
async def test_f3_every_watch_notices_a_restored_backup_that_has_moved_on(
    etcd: EtcdServer, tmp_path: Path, another: bool
) -> None:
    store = EtcdStore([etcd.endpoint])
    await put(store, "same", "1")
    etcd.restart()  # the terms of a restored cluster begin anew
    await put(store, "same", "2")
    [same], revision = await store.get_prefix(PREFIX)
    start, known = revision + 1, {same.key: same.mod_revision}
    await put(store, "old", "1")
    etcd.snapshot(tmp_path / "backup")
    await put(store, "old", "2")
    await put(store, "lost", "1")
    async with (
        aclosing(store.watch(PREFIX, start, known=known)) as first,
        aclosing(store.watch(PREFIX, start, known=known)) as second,
    ):
        for batches in (first, second):
            assert len(await take(batches, 3)) == 3
        etcd.stop()
        etcd.restore(tmp_path / "backup", another=another)
        etcd.start()
        new = [f"new{n}" for n in range(4)]
        for each in new:
            await put(store, each, "1")
        for batches in (first, second):
            events = brief(await take(batches, 7))
            assert events == [("lost", None), *((each, b"1") for each in new), ("old", b"1"), ("same", b"2")]
    await store.close()


async def test_a_watch_with_no_more_rights_than_it_needs_notices_a_restored_backup(tmp_path: Path) -> None:
    async with guarded_etcd(tmp_path) as etcd:
        registry, follower = (Identity(name, f"{name}-1", "", "zone-a") for name in ("registry", "controlplane"))
        writer, watcher = etcd.store(registry), etcd.store(follower)
        aliases = f"{keys.ROOT}aliases/"
        await eventually_put(writer, f"{aliases}kept", "1")
        await snapshot.save([etcd.server.endpoint], etcd.files[ROOT_USER], tmp_path / "backup")
        start = (await watcher.get_prefix(aliases)).revision + 1
        await eventually_put(writer, f"{aliases}lost", "1")
        async with aclosing(watcher.watch(aliases, start)) as batches:
            assert len(await take(batches, 1)) == 1
            etcd.server.stop()
            etcd.server.restore(tmp_path / "backup", another=True)
            etcd.server.start()
            events = {event.key.rpartition("/")[2]: event.value for event in await take(batches, 2)}
            assert events == {"lost": None, "kept": b"1"}
            await eventually_put(writer, f"{aliases}new", "1")
            assert [event.value for event in await take(batches, 1)] == [b"1"]
        for each in (writer, watcher):
            await each.close()


async def test_f3_a_watch_notices_that_its_listing_is_of_another_cluster(etcd: EtcdServer, tmp_path: Path) -> None:
    store = EtcdStore([etcd.endpoint])
    await put(store, "old", "1")
    etcd.snapshot(tmp_path / "backup")
    await put(store, "lost", "1")
    listing = await store.get_prefix(PREFIX)
    etcd.stop()
    etcd.restore(tmp_path / "backup", another=True)
    etcd.start()
    other = EtcdStore([etcd.endpoint])
    for n in range(3):
        await put(other, f"new{n}", "1")
    known = {kv.key: kv.mod_revision for kv in listing.kvs}
    async with aclosing(store.watch(PREFIX, listing.revision + 1, known=known)) as batches:
        events = brief(await take(batches, 5))
    assert events == [("lost", None), *((f"new{n}", b"1") for n in range(3)), ("old", b"1")]
    for each in (store, other):
        await each.close()


async def test_close_ends_a_waiting_watch(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    start = (await store.get_prefix(PREFIX)).revision + 1
    await put(store, "a", "1")
    seen = asyncio.Event()

    async def follow() -> int:
        count = 0
        async with aclosing(store.watch(PREFIX, start)) as batches:
            async for batch in batches:
                count += len(batch.events)
                seen.set()
        return count

    task = asyncio.create_task(follow())
    await seen.wait()
    await store.close()
    assert await asyncio.wait_for(task, 5) == 1


async def test_dead_endpoint_is_passed_over(etcd: EtcdServer) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    store = EtcdStore([dead, etcd.endpoint])
    start = (await store.get_prefix(PREFIX)).revision + 1
    assert (await store.txn(puts=[Put(PREFIX + "a", b"1")])).succeeded
    async with aclosing(store.watch(PREFIX, start)) as batches:
        assert brief(await take(batches, 1)) == [("a", b"1")]
    await store.close()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdServer]]:
    ports = free_ports(6)
    names = [f"m{n}" for n in range(3)]
    initial = ",".join(f"{name}=http://127.0.0.1:{ports[2 * n + 1]}" for n, name in enumerate(names))
    members = [
        EtcdServer(tmp_path_factory.mktemp(name), name=name, ports=(ports[2 * n], ports[2 * n + 1]), cluster=initial)
        for n, name in enumerate(names)
    ]
    for member in members:
        member.launch()
    for member in members:
        member.wait_listening()
    yield members
    for member in members:
        member.stop(kill=True)


async def test_leader_changes_lose_and_double_nothing(cluster: list[EtcdServer]) -> None:
    endpoints = [member.endpoint for member in cluster]
    writer, watcher = EtcdStore(endpoints), EtcdStore(endpoints[1:] + endpoints[:1])
    start = (await watcher.get_prefix(PREFIX)).revision + 1
    async with aclosing(watcher.watch(PREFIX, start)) as batches:
        seen: list[WatchEvent] = []
        # Killing each member in turn kills the leader at least once, and the member that the watch is on.
        for n, victim in enumerate(cluster):
            victim.stop(kill=True)
            await put(writer, f"k{n}", "down")
            victim.start()
            await put(writer, f"k{n}", "up")
        await put(writer, "end", "1")
        while not seen or seen[-1].key != PREFIX + "end":
            seen += await take(batches, 1)
    revisions = [event.mod_revision for event in seen]
    # An unclear write is repeated by `put`, so a value may be written twice, but each revision is seen once.
    assert revisions == sorted(set(revisions))
    merged: list[tuple[str, bytes | None]] = []
    for entry in brief(seen):
        if not merged or merged[-1] != entry:
            merged.append(entry)
    assert merged == [
        *((f"k{n}", state) for n in range(3) for state in (b"down", b"up")),
        ("end", b"1"),
    ]
    await writer.close()
    await watcher.close()


async def test_lost_quorum_is_said_and_healed(cluster: list[EtcdServer]) -> None:
    store = EtcdStore([member.endpoint for member in cluster])
    await put(store, "a", "1")
    for member in cluster[1:]:
        member.stop(kill=True)
    with pytest.raises(WeirError) as caught:
        await store.get(PREFIX + "a")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    cluster[1].start()
    await put(store, "a", "2")
    got = await store.get(PREFIX + "a")
    assert got is not None
    assert got.value == b"2"
    await store.close()


async def test_mutual_tls(tmp_path: Path) -> None:
    files = tls_of(tmp_path / "pki", "etcd")
    stranger = tls_of(tmp_path / "other", "etcd")
    tls = EtcdTls(Path(files.ca), Path(files.cert), Path(files.key))
    server = EtcdServer(tmp_path / "etcd", tls=tls)
    server.start()
    try:
        store = EtcdStore([server.endpoint], tls=files)
        await put(store, "a", "1")
        assert await store.get(PREFIX + "a") is not None
        await store.close()
        for bad in (EtcdStore([server.endpoint]), EtcdStore([server.endpoint], tls=stranger)):
            with pytest.raises(WeirError) as caught:
                await bad.get(PREFIX + "a")
            assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
            await bad.close()
    finally:
        server.stop()
