"""The revision at which credentials were last worth less reaches Envoy, and only that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.filters.http.set_metadata.v3 import set_metadata_pb2
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys
from services.controlplane import app
from services.controlplane.app import ControlPlane, build
from services.controlplane.config import Settings
from services.controlplane.policy.filters import EPOCH
from services.controlplane.policy.names import EDGE, ENDPOINTS, EXTENSION

KEY = pb.ApiKey(id="k", tenant="acme")


def put(message: Message) -> Put:
    return Put(keys.key_of(message), keys.encode(message))


def gateway_at(port: int) -> Put:
    return put(pb.Endpoint(service="gateway", instance="g", address=f"127.0.0.1:{port}"))


def told(control: ControlPlane) -> float:
    """The revision that Envoy is offered."""
    found, config = extension_pb2.TypedExtensionConfig(), set_metadata_pb2.Config()
    control.publisher.current.offers_for(EDGE, "")[EXTENSION].resources[EPOCH].Unpack(found)
    found.typed_config.Unpack(config)
    (metadata,) = config.metadata
    assert (found.name, metadata.metadata_namespace, metadata.allow_overwrite) == (EPOCH, EPOCH, True)
    return metadata.value.fields["rev"].number_value


@contextlib.asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[tuple[ControlPlane, asyncio.Event]]:
    """A control plane that has published something, and an event that is set at every publication behind it."""
    control, ready, published = await build(Settings(), store=store), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(control.run(ready.set))
    try:
        async with asyncio.timeout(10):
            await ready.wait()
            with control.publisher.subscribed(published):
                yield control, published
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_revocation_is_offered_at_its_own_revision_although_keys_are_not_followed() -> None:
    store = MemoryStore()
    await store.txn(puts=[put(KEY)])
    async with running(store) as (control, published):
        assert told(control) == 1, "0 would say that it was not told"
        revoked = await store.txn(puts=[put(KEY), Put(keys.EPOCH, b"x")])
        await published.wait()
        assert told(control) == revoked.revision
        published.clear()
        await store.txn(puts=[gateway_at(1)])
        await published.wait()
        assert told(control) == revoked.revision


async def test_a_revocation_is_offered_although_the_state_that_it_comes_with_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    await store.txn(puts=[gateway_at(1)])
    async with running(store) as (control, published):
        served = [control.publisher.current]
        monkeypatch.setattr(app, "consistent", lambda snapshot: ["a fault"])
        for port in (2, 3):
            published.clear()
            revoked = await store.txn(puts=[gateway_at(port), put(KEY), Put(keys.EPOCH, b"x")])
            await asyncio.wait_for(published.wait(), 10)
            assert told(control) == revoked.revision
            assert control.publisher.refused == f"revision {revoked.revision}: a fault"
            served.append(control.publisher.current)
        assert len({each.revision for each in served}) == 1
        offers = [each.offers_for(EDGE, "") for each in served]
        assert len({id(each[ENDPOINTS]) for each in offers}) == 1
        assert len({each[EXTENSION].version for each in offers}) == 3, "else nobody is told"
        monkeypatch.undo()
        published.clear()
        mended = await store.txn(puts=[gateway_at(4)])
        await asyncio.wait_for(published.wait(), 10)
        assert (control.publisher.current.revision, control.publisher.refused) == (mended.revision, "")
        assert told(control) == revoked.revision


@pytest.mark.parametrize("later", [pb.Tenant(id="acme"), KEY])
async def test_a_control_plane_that_starts_knows_the_last_revocation(later: Message) -> None:
    store = MemoryStore()
    revoked = await store.txn(puts=[Put(keys.EPOCH, b"x")])
    await store.txn(puts=[put(later)])
    async with running(store) as (control, _):
        assert told(control) == revoked.revision
