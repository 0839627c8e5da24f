"""What every registry store must do; run against memory and a real etcd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from libs.errors import Reason, WeirError
from libs.registry import Compare, EtcdStore, MemoryStore, Put, Store, WatchBatch, WatchEvent


@pytest.fixture(params=["memory", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore()
    else:
        made = EtcdStore([request.getfixturevalue("etcd_shared").endpoint])
    yield made
    await made.close()


@pytest.fixture
def prefix() -> str:
    return f"/test/{uuid.uuid4().hex}/"


async def collect(
    store: Store, prefix: str, start: int, count: int, known: dict[str, int] | None = None
) -> list[WatchEvent]:
    """The first events of a watch."""
    events: list[WatchEvent] = []
    async with aclosing(store.watch(prefix, start, known=known)) as batches:
        async for batch in batches:
            assert batch.events
            assert batch.revision == max(event.mod_revision for event in batch.events)
            events += batch.events
            if len(events) >= count:
                return events
    raise AssertionError("the watch ended")


async def test_absent_key(store: Store, prefix: str) -> None:
    assert await store.get(prefix + "a") is None
    assert (await store.get_prefix(prefix)).kvs == ()


async def test_put_get_list_delete(store: Store, prefix: str) -> None:
    written = await store.txn(puts=[Put(prefix + "b", b"2"), Put(prefix + "a", b"1")])
    assert written.succeeded
    got = await store.get(prefix + "a")
    assert got is not None
    assert (got.value, got.mod_revision, got.lease) == (b"1", written.revision, 0)
    kvs, revision = await store.get_prefix(prefix)
    assert [kv.key for kv in kvs] == [prefix + "a", prefix + "b"]
    assert revision >= written.revision
    deleted = await store.txn(deletes=[prefix + "a", prefix + "never-there"])
    assert deleted.succeeded
    assert deleted.revision > written.revision
    assert await store.get(prefix + "a") is None


async def test_prefix_is_exact(store: Store, prefix: str) -> None:
    await store.txn(puts=[Put(prefix + "x/1", b""), Put(prefix + "x0", b""), Put(prefix + "x", b"")])
    assert [kv.key for kv in (await store.get_prefix(prefix + "x/")).kvs] == [prefix + "x/1"]


async def test_compare_absent(store: Store, prefix: str) -> None:
    key = prefix + "a"
    assert (await store.txn(compares=[Compare(key, 0)], puts=[Put(key, b"1")])).succeeded
    assert not (await store.txn(compares=[Compare(key, 0)], puts=[Put(key, b"2")])).succeeded
    got = await store.get(key)
    assert got is not None
    assert got.value == b"1"


async def test_compare_revision_fences(store: Store, prefix: str) -> None:
    key, other = prefix + "a", prefix + "b"
    first = await store.txn(puts=[Put(key, b"1")])
    assert (await store.txn(compares=[Compare(key, first.revision)], puts=[Put(key, b"2")])).succeeded
    stale = await store.txn(compares=[Compare(key, first.revision)], puts=[Put(other, b"x")], deletes=[key])
    assert not stale.succeeded
    assert await store.get(other) is None
    assert await store.get(key) is not None


async def test_every_compare_must_hold(store: Store, prefix: str) -> None:
    a = await store.txn(puts=[Put(prefix + "a", b"1")])
    result = await store.txn(
        compares=[Compare(prefix + "a", a.revision), Compare(prefix + "b", 99)], puts=[Put(prefix + "c", b"1")]
    )
    assert not result.succeeded


async def test_writing_a_key_twice_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(WeirError) as caught:
        await store.txn(puts=[Put(prefix + "a", b"1"), Put(prefix + "a", b"2")])
    assert caught.value.reason is Reason.INVALID_REQUEST


async def test_one_of_many_writers_wins(store: Store, prefix: str) -> None:
    key = prefix + "a"
    results = await asyncio.gather(
        *(store.txn(compares=[Compare(key, 0)], puts=[Put(key, str(n).encode())]) for n in range(10))
    )
    assert sum(result.succeeded for result in results) == 1


async def test_watch_sees_history_then_news(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    await store.txn(puts=[Put(prefix + "a", b"1")])
    await store.txn(puts=[Put(prefix + "b", b"2")])
    task = asyncio.create_task(collect(store, prefix, start, 4))
    await store.txn(puts=[Put(prefix + "a", b"3")])
    await store.txn(deletes=[prefix + "b"])
    events = await task
    assert [(event.key[len(prefix) :], event.value) for event in events] == [
        ("a", b"1"),
        ("b", b"2"),
        ("a", b"3"),
        ("b", None),
    ]
    revisions = [event.mod_revision for event in events]
    assert revisions == sorted(set(revisions))


async def test_watch_keeps_a_transaction_together(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    await store.txn(puts=[Put(f"{prefix}{n}", b"") for n in range(5)])
    async with aclosing(store.watch(prefix, start)) as batches:
        batch: WatchBatch = await anext(batches)
    assert {event.key for event in batch.events} == {f"{prefix}{n}" for n in range(5)}


async def test_watch_ignores_other_prefixes(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    await store.txn(puts=[Put(prefix[:-1] + "-other/a", b"")])
    await store.txn(puts=[Put(prefix + "a", b"")])
    assert [event.key for event in await collect(store, prefix, start, 1)] == [prefix + "a"]


async def test_two_watches_are_independent(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    tasks = [asyncio.create_task(collect(store, prefix, start, 20)) for _ in range(2)]
    for n in range(20):
        await store.txn(puts=[Put(f"{prefix}k{n % 3}", str(n).encode())])
    for events in await asyncio.gather(*tasks):
        assert [event.value for event in events] == [str(n).encode() for n in range(20)]


async def test_lease_keeps_and_revoke_deletes(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    lease = await store.lease_grant(30)
    await store.txn(puts=[Put(prefix + "a", b"1", lease)])
    got = await store.get(prefix + "a")
    assert got is not None
    assert got.lease == lease
    assert 0 < await store.lease_keepalive(lease) <= 30
    await store.lease_revoke(lease)
    assert await store.get(prefix + "a") is None
    events = await collect(store, prefix, start, 2)
    assert [event.value for event in events] == [b"1", None]


async def test_lease_expires_without_life(store: Store, prefix: str) -> None:
    start = (await store.get_prefix(prefix)).revision + 1
    lease = await store.lease_grant(1)
    await store.txn(puts=[Put(prefix + "a", b"1", lease)])
    async with asyncio.timeout(15):
        events = await collect(store, prefix, start, 2)
    assert events[1].value is None
    with pytest.raises(WeirError) as caught:
        await store.lease_keepalive(lease)
    assert caught.value.reason is Reason.NOT_FOUND


async def test_lease_gone(store: Store, prefix: str) -> None:
    lease = await store.lease_grant(30)
    await store.lease_revoke(lease)
    await store.lease_revoke(lease)
    with pytest.raises(WeirError) as kept:
        await store.lease_keepalive(lease)
    assert kept.value.reason is Reason.NOT_FOUND
    with pytest.raises(WeirError) as put:
        await store.txn(puts=[Put(prefix + "a", b"", lease)])
    assert put.value.reason is Reason.NOT_FOUND
    assert await store.get(prefix + "a") is None


async def test_rewritten_without_lease_outlives_it(store: Store, prefix: str) -> None:
    lease = await store.lease_grant(30)
    await store.txn(puts=[Put(prefix + "a", b"1", lease)])
    await store.txn(puts=[Put(prefix + "a", b"2")])
    await store.lease_revoke(lease)
    got = await store.get(prefix + "a")
    assert got is not None
    assert got.lease == 0


async def test_watch_from_compacted_history_gives_the_difference(
    store: Store, prefix: str, request: pytest.FixtureRequest
) -> None:
    await store.txn(puts=[Put(prefix + "kept", b"1"), Put(prefix + "changed", b"1"), Put(prefix + "gone", b"1")])
    kvs, revision = await store.get_prefix(prefix)
    known = {kv.key: kv.mod_revision for kv in kvs}
    await store.txn(puts=[Put(prefix + "changed", b"2")])
    await store.txn(deletes=[prefix + "gone"])
    last = await store.txn(puts=[Put(prefix + "new", b"1")])
    if isinstance(store, MemoryStore):
        store.compact(last.revision)
    else:
        request.getfixturevalue("etcd_shared").compact(last.revision)
    task = asyncio.create_task(collect(store, prefix, revision + 1, 4, known))
    async with aclosing(store.watch(prefix, revision + 1, known=known)) as batches:
        merged = await anext(batches)
    assert {(event.key[len(prefix) :], event.value) for event in merged.events} == {
        ("changed", b"2"),
        ("gone", None),
        ("new", b"1"),
    }
    await store.txn(puts=[Put(prefix + "after", b"1")])
    assert prefix + "after" in {event.key for event in await task}


async def test_available(store: Store, prefix: str) -> None:
    assert store.available
    await store.get(prefix)
    assert store.available


async def test_keys_come_in_the_order_of_their_writes_page_by_page(store: Store, prefix: str) -> None:
    revisions = [(await store.txn(puts=[Put(prefix + name, name.encode())])).revision for name in "cabed"]
    await store.txn(puts=[Put(prefix[:-1] + "0", b"beyond the prefix")])
    first = await store.get_by_revision(prefix, limit=2)
    assert [(kv.value, kv.mod_revision) for kv in first.kvs] == [(b"d", revisions[4]), (b"e", revisions[3])]
    assert first.revision > revisions[4]
    rest = await store.get_by_revision(prefix, limit=9, before=revisions[3])
    assert [kv.value for kv in rest.kvs] == [b"b", b"a", b"c"]
    between = await store.get_by_revision(prefix, limit=9, after=revisions[0], before=revisions[3])
    assert [kv.value for kv in between.kvs] == [b"b", b"a"]
    oldest = await store.get_by_revision(prefix, limit=1, newest_first=False, keys_only=True)
    assert [(kv.key, kv.value) for kv in oldest.kvs] == [(prefix + "c", b"")]
    assert (await store.get_by_revision(prefix, limit=9, after=revisions[4])).kvs == ()
