"""A real etcd that stands still for longer than its leases: every endpoint ends in it, and none in what views show."""

from __future__ import annotations

import asyncio

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import EndpointRegistration, EtcdStore, RegistryView, keys
from tests.support.etcd import EtcdServer

COUNT = 12
TTL = 2.0
"""Seconds; etcd has no shorter lease."""
FREEZE = 2.5 * TTL


def leases(view: RegistryView) -> set[int]:
    """Of the endpoints that etcd has."""
    return {kv.lease for kv in view.under(keys.key("endpoints", ""))}


async def test_f2_endpoints_outlast_a_freeze_that_ends_their_leases(etcd: EtcdServer) -> None:
    stores = [EtcdStore([etcd.endpoint]) for _ in range(COUNT + 1)]
    watched, *own = stores
    registrations = [
        EndpointRegistration(store, pb.Endpoint(service="worker", instance=f"w{n}", address=f"127.0.0.1:{n + 1}"), TTL)
        for n, store in enumerate(own)
    ]
    view, shown = RegistryView(watched), list[int]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        running = [group.create_task(registration.run()) for registration in registrations]
        await view.wait_until(lambda snapshot: len(snapshot.endpoints) == COUNT)
        view.on_change(lambda snapshot: shown.append(len(snapshot.endpoints)))
        before = leases(view)
        etcd.pause()
        await asyncio.sleep(FREEZE)  # this is the fault, not a wait for something
        etcd.resume()
        await view.wait_until(lambda _: len(leases(view) - before) == COUNT)
        assert set(shown) == {COUNT}
        for registration in registrations:
            registration.close()
        await asyncio.wait(running)
        await view.wait_until(lambda snapshot: not snapshot.endpoints)
        following.cancel()
    for store in stores:
        await store.close()
