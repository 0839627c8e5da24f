"""What everything that a view follows must do: a store itself, and the registry service over one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import resource_of
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, KeyValue, Listing, MemoryStore, Put, Source, Store, WatchBatch, WatchEvent, keys
from libs.registry.remote import RegistrySource
from libs.resources.codec import decode, located
from libs.resources.kinds import KINDS
from tests.support.registry_service import put, running_of, settings, tenant

ALL = [kind.plural for kind in KINDS]


@dataclass
class Bench:
    """A source, and the store that lies behind it."""

    source: Source
    store: Store


@contextlib.asynccontextmanager
async def registry_over(store: Store, folder: Path) -> AsyncIterator[Source]:
    async with running_of(settings(folder), store) as (running, _):
        source = RegistrySource(f"127.0.0.1:{running.port}", ALL)
        yield source
        await source.close()


@pytest.fixture(params=["memory", "etcd", "registry-memory", "registry-etcd"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    over, _, below = request.param.rpartition("-")
    store: Store = MemoryStore()
    if below == "etcd":
        store = EtcdStore([request.getfixturevalue("etcd").endpoint])
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        source: Source = await stack.enter_async_context(registry_over(store, tmp_path)) if over else store
        yield Bench(source, store)


def written(message: Message, lease: int = 0) -> Put:
    return Put(keys.key_of(message), keys.encode(message), lease)


def limits(name: str) -> pb.Limits:
    return pb.Limits(tenant=name, model="*")


async def delete(store: Store, *messages: Message) -> int:
    return (await store.txn(deletes=[keys.key_of(each) for each in messages])).revision


def brief(events: Iterable[WatchEvent | KeyValue]) -> list[tuple[str, str | None, int]]:
    """Keys, what each says, and when it came."""
    found = []
    for event in events:
        if located(event.key):
            told = None if event.value is None else decode(event.value, 0).tenant.display_name
            found.append((resource_of(event.key), told, event.mod_revision))
    return found


async def caught_up(source: Source, revision: int) -> Listing:
    """The listing once it has come so far: a registry is a moment behind its store."""
    while (listing := await source.get_prefix(keys.EVERYTHING)).revision < revision:  # noqa: ASYNC110 - nothing to wait for
        await asyncio.sleep(0)
    return listing


async def collect(source: Source, start: int, end: int, known: dict[str, int] | None = None) -> list[WatchBatch]:
    """The batches of a watch up to a revision."""
    batches: list[WatchBatch] = []
    async with aclosing(source.watch(keys.EVERYTHING, start, known=known)) as following:
        async for batch in following:
            assert batch.events
            batches.append(batch)
            if batch.revision >= end:
                return batches
    raise AssertionError("the watch ended")


def flat(batches: Iterable[WatchBatch]) -> list[tuple[str, str | None, int]]:
    return brief(event for batch in batches for event in batch.events)


async def test_a_listing_is_all_of_one_revision(bench: Bench) -> None:
    listing = await bench.source.get_prefix(keys.EVERYTHING)
    assert brief(listing.kvs) == []
    first = await put(bench.store, tenant("b", display_name="1"), limits("b"))
    second = await put(bench.store, tenant("a", display_name="2"))
    listing = await caught_up(bench.source, second)
    assert sorted(brief(listing.kvs)) == [
        ("limits/b/*", "", first),
        ("tenants/a", "2", second),
        ("tenants/b", "1", first),
    ]
    assert listing.revision == second
    assert bench.source.available


async def test_a_watch_tells_what_was_and_what_comes_once_and_in_order(bench: Bench) -> None:
    start = (await bench.source.get_prefix(keys.EVERYTHING)).revision + 1
    revisions = [await put(bench.store, tenant("a", display_name=each)) for each in "123"]
    task = asyncio.create_task(collect(bench.source, start, revisions[-1] + 2))
    revisions.append(await delete(bench.store, tenant("a")))
    revisions.append(await put(bench.store, tenant("a", display_name="4")))
    told = flat(await task)
    assert told == [
        ("tenants/a", value, revision) for value, revision in zip(["1", "2", "3", None, "4"], revisions, strict=True)
    ]


async def test_a_transaction_stays_together(bench: Bench) -> None:
    start = (await bench.source.get_prefix(keys.EVERYTHING)).revision + 1
    await put(bench.store, tenant("gone"))
    result = await bench.store.txn(
        puts=[written(tenant(f"t{number}")) for number in range(5)], deletes=[keys.key_of(tenant("gone"))]
    )
    batches = await collect(bench.source, start, result.revision)
    last = [each for each in batches[-1].events if each.mod_revision == result.revision]
    assert {name for name, _, _ in brief(last)} == {*(f"tenants/t{number}" for number in range(5)), "tenants/gone"}


async def test_two_watches_are_independent(bench: Bench) -> None:
    start = (await bench.source.get_prefix(keys.EVERYTHING)).revision + 1
    tasks = [asyncio.create_task(collect(bench.source, start, start + 19)) for _ in range(2)]
    for number in range(20):
        await put(bench.store, tenant(f"t{number % 3}", display_name=str(number)))
    for batches in await asyncio.gather(*tasks):
        assert [value for _, value, _ in flat(batches)] == [str(number) for number in range(20)]


async def test_what_goes_with_its_lease_is_told(bench: Bench) -> None:
    start = (await bench.source.get_prefix(keys.EVERYTHING)).revision + 1
    lease = await bench.store.lease_grant(30)
    endpoint = pb.Endpoint(service="worker", instance="w0")
    await bench.store.txn(puts=[written(endpoint, lease)])
    await bench.store.lease_revoke(lease)
    told = flat(await collect(bench.source, start, start + 1))
    assert [(name, value is None) for name, value, _ in told] == [
        ("endpoints/worker/w0", False),
        ("endpoints/worker/w0", True),
    ]


async def test_from_compacted_history_the_difference_is_told(bench: Bench, request: pytest.FixtureRequest) -> None:
    await put(bench.store, *(tenant(name, display_name="1") for name in ("kept", "changed", "gone")))
    listing = await caught_up(bench.source, 2)
    known = {kv.key: kv.mod_revision for kv in listing.kvs}
    await put(bench.store, tenant("changed", display_name="2"))
    await delete(bench.store, tenant("gone"))
    last = await put(bench.store, tenant("new", display_name="1"))
    if isinstance(bench.store, MemoryStore):
        bench.store.compact(last)
    else:
        request.getfixturevalue("etcd").compact(last)
    told = flat(await collect(bench.source, listing.revision + 1, last, known))
    # The registry may still know each step; the end is the same.
    assert {name: value for name, value, _ in told} == {
        "tenants/changed": "2",
        "tenants/gone": None,
        "tenants/new": "1",
    }
    after = await put(bench.store, tenant("after"))
    assert flat(await collect(bench.source, last + 1, after)) == [("tenants/after", "", after)]


async def test_closing_ends_a_watch_that_waits(bench: Bench) -> None:
    start = (await bench.source.get_prefix(keys.EVERYTHING)).revision + 1
    await put(bench.store, tenant("a"))
    seen = asyncio.Event()

    async def follow() -> int:
        count = 0
        async with aclosing(bench.source.watch(keys.EVERYTHING, start)) as batches:
            async for batch in batches:
                count += len(batch.events)
                seen.set()
        return count

    task = asyncio.create_task(follow())
    await seen.wait()
    await bench.source.close()
    assert await asyncio.wait_for(task, 5) == 1


async def test_an_absence_is_said_and_ridden_out(tmp_path: Path) -> None:
    """Of the registry: what its store does then is the store contract's."""
    store = MemoryStore()
    async with running_of(settings(tmp_path), store) as (running, _):
        source = RegistrySource(f"127.0.0.1:{running.port}", ALL)
        await put(store, tenant("a"))
        await caught_up(source, 2)
        config = settings(tmp_path, port=running.port)
    with pytest.raises(WeirError) as caught:
        await source.get_prefix(keys.EVERYTHING)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert not source.available
    task = asyncio.create_task(collect(source, 2, 4, {}))
    await put(store, tenant("b"))
    async with running_of(config, store), asyncio.timeout(30):
        last = await put(store, tenant("c"))
        assert {name for name, _, _ in flat(await task)} == {"tenants/a", "tenants/b", "tenants/c"}
        assert last == 4
        assert source.available
    await source.close()
