"""RegistryView: following, outages, the cache on disk, callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import KeyValue, Listing, MemoryStore, Put, RegistrySnapshot, RegistryView, WatchBatch, cache, keys


async def write(store: MemoryStore, message: Message) -> None:
    await store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])


@contextlib.asynccontextmanager
async def running(view: RegistryView) -> AsyncIterator[RegistryView]:
    task = asyncio.create_task(view.run())
    try:
        yield view
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_follows_the_store() -> None:
    store = MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    async with running(RegistryView(store)) as view, asyncio.timeout(5):
        assert view.revision == 0
        assert not view.live
        await view.wait_ready()
        assert view.live
        assert set(view.snapshot.tenants) == {"acme"}
        await write(store, pb.Tenant(id="globex"))
        await view.wait_until(lambda snapshot: "globex" in snapshot.tenants)
        await store.txn(deletes=[keys.key("tenants", "acme")])
        await view.wait_until(lambda snapshot: "acme" not in snapshot.tenants)
        assert view.revision == store.revision


async def test_an_empty_registry_is_ready() -> None:
    async with running(RegistryView(MemoryStore())) as view, asyncio.timeout(5):
        await view.wait_ready()
        assert view.revision > 0


async def test_compaction_during_an_outage() -> None:
    store = MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    async with running(RegistryView(store)) as view, asyncio.timeout(5):
        await view.wait_ready()
        kept = view.snapshot
        store.set_available(False)
        assert view.snapshot is kept
        assert not view.live
        store.set_available(True)
        await store.txn(deletes=[keys.key("tenants", "acme")])
        await write(store, pb.Tenant(id="globex"))
        store.compact()
        await view.wait_until(lambda snapshot: set(snapshot.tenants) == {"globex"})


async def test_callbacks() -> None:
    store = MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    seen: list[int] = []
    late: list[int] = []

    def broken(_: RegistrySnapshot) -> None:
        raise RuntimeError("a fault of a subscriber")

    view = RegistryView(store)
    view.on_change(broken)
    stop = view.on_change(lambda snapshot: seen.append(snapshot.revision))
    async with running(view), asyncio.timeout(5):
        await view.wait_ready()
        view.on_change(lambda snapshot: late.append(snapshot.revision))
        assert late == seen == [store.revision]
        stop()
        await write(store, pb.Tenant(id="globex"))
        await view.wait_until(lambda snapshot: "globex" in snapshot.tenants)
    assert len(seen) == 1
    assert late == [seen[0], store.revision]


async def saved(path: Path) -> Listing:
    """The cache once it is on disk; it is written in a thread."""
    async with asyncio.timeout(5):
        while (listing := await asyncio.to_thread(cache.load, path)) is None:
            pass
    return listing


async def test_starts_from_the_cache_without_the_store(tmp_path: Path) -> None:
    file = tmp_path / "state" / "registry.cache"
    store = MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    async with running(RegistryView(store, cache_file=file)) as view:
        listing = await saved(file)
        assert listing.revision == view.revision
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    store.set_available(False)
    async with running(RegistryView(store, cache_file=file)) as view, asyncio.timeout(5):
        await view.wait_ready()
        assert set(view.snapshot.tenants) == {"acme"}
        assert view.snapshot.tenants["acme"].revision == view.revision
        assert not view.live
        store.set_available(True)
        await write(store, pb.Tenant(id="globex"))
        await view.wait_until(lambda snapshot: set(snapshot.tenants) == {"acme", "globex"})
        assert view.live


async def changed_behind_the_cache(store: MemoryStore) -> None:
    await store.txn(deletes=[keys.key("tenants", "gone")])
    await write(store, pb.Tenant(id="globex"))


async def unchanged(store: MemoryStore) -> None:
    await store.txn(puts=[Put(keys.HISTORY + "x", b"")])


@pytest.mark.parametrize("meanwhile", [changed_behind_the_cache, unchanged])
async def test_what_the_cache_did_not_know_is_told_as_one_merged_batch(
    tmp_path: Path, meanwhile: Callable[[MemoryStore], Awaitable[None]]
) -> None:
    """Whoever follows the batches of a view must not take its first state for the store's."""
    file, store = tmp_path / "registry.cache", MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    await write(store, pb.Tenant(id="gone"))
    async with running(RegistryView(store, cache_file=file)):
        await saved(file)
    await meanwhile(store)
    store.set_available(False)
    view, batches = RegistryView(store, cache_file=file), list[WatchBatch]()
    view.on_batch(batches.append)
    async with running(view), asyncio.timeout(5):
        await view.wait_ready()
        assert not batches
        store.set_available(True)
        await view.wait_until(lambda snapshot: snapshot.revision == store.revision)
        [batch] = batches
        assert (batch.merged, batch.revision) == (True, store.revision)
        told = {event.key: event.value is None for event in batch.events}
        expected = {keys.key("tenants", "gone"): True, keys.key("tenants", "globex"): False}
        assert told == (expected if meanwhile is changed_behind_the_cache else {})
        assert view.listing() == await store.get_prefix(keys.EVERYTHING)


async def test_a_cache_of_another_history_is_replaced(tmp_path: Path) -> None:
    """The store was restored: at equal revisions it has other values."""
    file, store = tmp_path / "registry.cache", MemoryStore()
    await write(store, pb.Tenant(id="acme", display_name="new"))
    cache.save(
        file,
        Listing(
            (
                KeyValue(keys.key("tenants", "acme"), keys.encode(pb.Tenant(id="acme", display_name="old")), 2),
                KeyValue(keys.key("tenants", "gone"), keys.encode(pb.Tenant(id="gone")), 9),
            ),
            9,
        ),
    )
    async with running(RegistryView(store, cache_file=file)) as view, asyncio.timeout(5):
        await view.wait_until(lambda snapshot: snapshot.revision == store.revision)
        assert {name: each.display_name for name, each in view.snapshot.tenants.items()} == {"acme": "new"}


async def test_only_the_kinds_that_are_followed_are_known() -> None:
    store = MemoryStore()
    await write(store, pb.Tenant(id="acme"))
    async with running(RegistryView(store, kinds=["tenants"])) as view, asyncio.timeout(5):
        with pytest.raises(RuntimeError):
            len(view.snapshot.limits)
        await view.wait_ready()
        await write(store, pb.Limits(tenant="acme", model="*"))
        await write(store, pb.Tenant(id="globex"))
        snapshot = await view.wait_until(lambda snapshot: len(snapshot.tenants) == 2)
        with pytest.raises(RuntimeError, match="kinds"):
            snapshot.limits.get(("acme", "*"))
        assert view.stored(keys.key("limits", "acme/*")) is None
        assert [kv.key for kv in view.listing().kvs] == [keys.key("tenants", each) for each in ("acme", "globex")]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "garbage"])
def test_damaged_cache_is_not_used(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "cache"
    listing = Listing((KeyValue("/weir/v1/tenants/acme", b"\x00\xff", 3, 9),), 4)
    cache.save(file, listing)
    assert cache.load(file) == listing
    raw = bytearray(file.read_bytes())
    if damage == "flip":
        raw[-5] ^= 1
    elif damage == "cut":
        del raw[-1]
    elif damage == "empty":
        raw.clear()
    else:
        raw = bytearray(b"\x00" * 100)
    file.write_bytes(raw)
    assert cache.load(file) is None


def test_missing_cache() -> None:
    assert cache.load(Path("/nonexistent/cache")) is None
