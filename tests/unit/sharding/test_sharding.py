"""Shards of keys, and the watching of a service's members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from google.protobuf import timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2

from libs.registry import MemoryStore, Put, RegistryView, keys
from libs.sharding import SHARDS, Members, shard_of


@given(st.text(), st.integers(1, 1000))
def test_every_key_has_a_shard_and_always_the_same(key: str, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards
    assert shard_of(key, shards) == shard_of(key, shards)


def test_shards_are_the_same_in_every_version() -> None:
    assert [shard_of(key) for key in ("acme", "globex", "初", "")] == [14, 10, 3, 0]


def test_keys_spread_over_all_shards() -> None:
    assert len({shard_of(f"tenant-{number}") for number in range(400)}) == SHARDS


def test_there_is_no_shard_of_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        shard_of("acme", 0)


def leaving(instance: str) -> Put:
    endpoint = registry_pb2.Endpoint(service="admission", instance=instance, leaving=True)
    return Put(keys.key_of(endpoint), keys.encode(endpoint))


class World:
    """A registry whose endpoints come and go, and what a watcher was told."""

    def __init__(self, store: MemoryStore, view: RegistryView) -> None:
        self.store = store
        self.view = view
        self.told: asyncio.Queue[set[str]] = asyncio.Queue()

    def on_change(self, members: Mapping[str, Any]) -> None:
        self.told.put_nowait(set(members))

    async def up(self, instance: str, *, service: str = "admission", started: int = 1) -> None:
        endpoint = registry_pb2.Endpoint(
            service=service,
            instance=instance,
            address=f"10.0.0.1:{len(instance)}",
            started_at=timestamp_pb2.Timestamp(seconds=started),
        )
        await self._seen(await self.store.txn(puts=[Put(keys.key_of(endpoint), keys.encode(endpoint))]))

    async def down(self, instance: str) -> None:
        await self._seen(await self.store.txn(puts=[leaving(instance)]))

    async def _seen(self, result: Any) -> None:
        await self.view.wait_until(lambda snapshot: snapshot.revision >= result.revision)


@contextlib.asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    store = MemoryStore()
    view = RegistryView(store)
    running = asyncio.create_task(view.run())
    made = World(store, view)
    await made.store.txn(puts=[Put("/weir/v1/fence", b"{}")])
    await view.wait_ready()
    await made.up("a")
    members = Members(view, "admission", on_change=made.on_change, **options)
    watching = asyncio.create_task(members.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        for task in (watching, running):
            task.cancel()
        await asyncio.gather(watching, running, return_exceptions=True)


async def test_a_change_is_told_and_the_first_set_is_none() -> None:
    async with world(settle_seconds=0.0) as mesh:
        await mesh.up("other", service="router")
        await mesh.up("bb")
        assert await mesh.told.get() == {"a", "bb"}
        await mesh.down("a")
        assert await mesh.told.get() == {"bb"}
        assert mesh.told.empty()


async def test_a_member_started_anew_is_a_change() -> None:
    async with world(settle_seconds=0.0) as mesh:
        await mesh.up("a", started=2)
        assert await mesh.told.get() == {"a"}


async def test_changes_that_come_together_are_told_once() -> None:
    async with world(settle_seconds=0.0) as mesh:
        born = [registry_pb2.Endpoint(service="admission", instance=name, address=f"{name}:1") for name in ("bb", "c")]
        puts = [Put(keys.key_of(endpoint), keys.encode(endpoint)) for endpoint in born]
        await mesh.store.txn(puts=[*puts, leaving("a")])
        assert await mesh.told.get() == {"bb", "c"}
        assert mesh.told.empty()


async def test_several_members_are_told_again_and_again() -> None:
    async with world(settle_seconds=0.0, again_seconds=0.01) as mesh:
        await mesh.up("bb")
        for _ in range(3):
            assert await mesh.told.get() == {"a", "bb"}


async def test_the_present_set_is_known_before_it_settles() -> None:
    async with world(settle_seconds=3600.0) as mesh:
        members = Members(mesh.view, "admission", settle_seconds=3600.0, on_change=mesh.on_change)
        await mesh.up("bb")
        assert set(members.current) == {"a", "bb"}
        assert mesh.told.empty()
