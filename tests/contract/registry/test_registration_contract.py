"""A registered endpoint may change under its lease, in memory and in a real etcd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import EndpointRegistration, EtcdStore, MemoryStore, Store, keys


@pytest.fixture(params=["memory", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore()
    else:
        made = EtcdStore([request.getfixturevalue("etcd_shared").endpoint])
    yield made
    await made.close()


def endpoint(instance: str, *states: pb.LoadState) -> pb.Endpoint:
    found = pb.Endpoint(service="worker", instance=instance, address="127.0.0.1:7")
    for number, state in enumerate(states):
        found.model_states.add(model_version=f"m@{number}", state=state)
    return found


async def written(store: Store, value: pb.Endpoint) -> int:
    """The lease under which this value is stored, once it is."""
    async with asyncio.timeout(10):
        while (now := await store.get(keys.key_of(value))) is None or now.value != keys.encode(value):  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0)
    return now.lease


async def test_updates_are_written_under_the_same_lease_and_go_with_it(store: Store) -> None:
    instance = f"worker-{uuid.uuid4().hex}"
    registration = EndpointRegistration(store, endpoint(instance))
    running = asyncio.create_task(registration.run())
    lease = await written(store, endpoint(instance))
    assert lease
    for states in ((pb.LOAD_STATE_FETCHING,), (pb.LOAD_STATE_READY, pb.LOAD_STATE_FAILED), ()):
        registration.update(endpoint(instance, *states))
        assert await written(store, endpoint(instance, *states)) == lease
    # An update that comes together with the end does not keep it alive.
    registration.update(endpoint(instance, pb.LOAD_STATE_READY))
    running.cancel()
    await asyncio.wait((running,), timeout=10)
    assert running.cancelled()
    assert await store.get(keys.key_of(endpoint(instance))) is None
