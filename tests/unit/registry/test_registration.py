"""EndpointRegistration: present while it runs, back after losses, gone at the end."""

from __future__ import annotations

import asyncio

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import EndpointRegistration, MemoryStore, Put, RegistryView, keys
from libs.registry.ports import KeyValue

ENDPOINT = pb.Endpoint(service="worker", instance="worker-0", address="127.0.0.1:7")
KEY = keys.key("endpoints", "worker/worker-0")


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


async def absent(store: MemoryStore) -> None:
    assert await store.get(KEY) is None


async def test_registers_updates_and_withdraws(store: MemoryStore) -> None:
    view = RegistryView(store)
    registration = EndpointRegistration(store, ENDPOINT, ttl=30)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(view.run())
        run = tasks.create_task(registration.run())
        await registration.wait_registered()
        stored = await store.get(KEY)
        assert stored is not None
        assert stored.lease
        changed = pb.Endpoint()
        changed.CopyFrom(ENDPOINT)
        changed.model_versions.append("weir-fast@1")
        registration.update(changed)
        await view.wait_until(
            lambda snapshot: any(endpoint.model_versions for endpoint in snapshot.endpoints_of("worker"))
        )
        registration.close()
        await run
        await absent(store)
        following.cancel()


async def test_cancellation_withdraws(store: MemoryStore) -> None:
    registration = EndpointRegistration(store, ENDPOINT, ttl=30)
    task = asyncio.create_task(registration.run())
    await asyncio.wait_for(registration.wait_registered(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await absent(store)


@pytest.mark.parametrize("loss", ["lease", "key", "outage"])
async def test_comes_back(store: MemoryStore, loss: str) -> None:
    view = RegistryView(store)
    registration = EndpointRegistration(store, ENDPOINT, ttl=0.3)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(view.run())
        run = tasks.create_task(registration.run())
        await registration.wait_registered()
        first = await store.get(KEY)
        assert first is not None
        if loss == "lease":
            await store.lease_revoke(first.lease)
        elif loss == "key":
            await store.txn(deletes=[KEY])
        else:
            store.set_available(False)
            store.expire_leases()
            store.set_available(True)
            await store.lease_revoke(first.lease)
        await view.wait_until(lambda snapshot: snapshot.revision > first.mod_revision + 1)
        again = await store.get(KEY)
        assert again is not None
        assert (again.lease == first.lease) is (loss == "key")
        registration.close()
        await run
        following.cancel()


async def test_another_process_of_that_name_is_not_withdrawn(store: MemoryStore) -> None:
    old = EndpointRegistration(store, ENDPOINT, ttl=30)
    old_run = asyncio.create_task(old.run())
    await asyncio.wait_for(old.wait_registered(), 5)
    lease = await store.lease_grant(30)
    await store.txn(puts=[Put(KEY, b"{}", lease)])
    old.close()
    await old_run
    stored = await store.get(KEY)
    assert stored is not None
    assert stored.lease == lease


async def test_update_is_for_the_same_instance(store: MemoryStore) -> None:
    with pytest.raises(ValueError, match="same"):
        EndpointRegistration(store, ENDPOINT).update(pb.Endpoint(service="worker", instance="worker-1"))


async def test_withdrawing_without_the_store_is_quiet(store: MemoryStore) -> None:
    registration = EndpointRegistration(store, ENDPOINT, ttl=30)
    run = asyncio.create_task(registration.run())
    await asyncio.wait_for(registration.wait_registered(), 5)
    store.set_available(False)
    registration.close()
    await asyncio.wait_for(run, 5)


class Counted(MemoryStore):
    """Counts calls; the second write waits to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = self.looks = 0
        self.writing, self.go = asyncio.Event(), asyncio.Event()

    async def lease_keepalive(self, lease: int) -> float:
        self.beats += 1
        return await super().lease_keepalive(lease)

    async def get(self, key: str) -> KeyValue | None:
        self.looks += 1
        if self.looks == 2:
            self.writing.set()
            await self.go.wait()
        return await super().get(key)


async def test_most_beats_only_prolong_the_lease_and_an_update_during_a_look_is_written() -> None:
    store = Counted()
    view = RegistryView(store)
    registration = EndpointRegistration(store, ENDPOINT, ttl=0.15)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(view.run())
        run = tasks.create_task(registration.run())
        await store.writing.wait()
        assert store.beats == 3
        changed = pb.Endpoint(zone="b")
        changed.MergeFrom(ENDPOINT)
        registration.update(changed)
        beats = store.beats
        store.go.set()
        await view.wait_until(lambda snapshot: any(one.zone == "b" for one in snapshot.endpoints_of("worker")))
        assert store.beats == beats + 1
        registration.close()
        await run
        following.cancel()
