"""A revoked key at the edge, with real etcd, edge-auth, control plane and Envoy over mTLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from weir.inference.v1 import inference_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.registry import EtcdStore, Put, keys
from services.controlplane.policy.names import EXTENSION
from tests.support.predictions import PredictionEdge, prediction_edge

pytestmark = pytest.mark.asyncio(loop_scope="module")
TENANTS = tuple(f"t{number}" for number in range(4))


class Caller:
    """Calls the gateway with a tenant's key, over one connection."""

    def __init__(self, edge: PredictionEdge, channel: grpc.aio.Channel, tenant: str) -> None:
        self._edge = edge
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._token = edge.tokens[tenant]
        self.tenant = tenant

    async def passes(self) -> bool:
        """Whether a generation begins."""
        call = self._stub.Generate(metadata=(("authorization", f"Bearer {self._token}"),), timeout=30)
        try:
            await call.done_writing()
            async for _ in call:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the status says why
        code = await call.code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED), await call.details()
        return code is grpc.StatusCode.OK

    async def revoke(self) -> int:
        """As the registry writes it; the revision."""
        parsed = apikeys.parse(self._token)
        assert parsed is not None
        store: EtcdStore = self._edge.store
        (held,) = (kv for kv in (await store.get_prefix(keys.SECRETS)).kvs if kv.key.endswith(f"/{parsed.id}"))
        key = pb.ApiKey()
        key.CopyFrom(self._edge._auth._view.snapshot.keys[parsed.id])
        key.revoked_at.GetCurrentTime()
        return (await store.txn(puts=[Put(held.key, keys.encode(key)), Put(keys.EPOCH, b"test")])).revision


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PredictionEdge]:
    """A running edge."""
    directory: Path = tmp_path_factory.mktemp("revocation")
    async with prediction_edge(directory, tenants=TENANTS) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def channel(edge: PredictionEdge) -> AsyncIterator[grpc.aio.Channel]:
    """To the plain listener."""
    port = (await edge.envoy.listeners())["edge-http"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as found:
        yield found


async def unasked(edge: PredictionEdge) -> int:
    """Requests about which edge-auth was not asked."""
    return sum((await edge.envoy.counters(r"^http\.edge-http\.ext_authz\.disabled$")).values())


async def test_a_revoked_key_is_refused_as_soon_as_envoy_has_the_push(
    edge: PredictionEdge, channel: grpc.aio.Channel
) -> None:
    caller, other = Caller(edge, channel, "t0"), Caller(edge, channel, "t1")
    before = await unasked(edge)
    for _ in range(5):
        assert await caller.passes()
        assert await other.passes()
    assert await unasked(edge) > before, "they were known"
    revision = await caller.revoke()
    async with asyncio.timeout(30):
        await edge.acks.wait(revision, type_url=EXTENSION)
        await edge._auth._view.wait_until(lambda snapshot: snapshot.revision >= revision)
    assert not await caller.passes()
    assert await other.passes()


async def test_under_load_a_revoked_key_is_refused_without_anybody_waiting_for_it(
    edge: PredictionEdge, channel: grpc.aio.Channel
) -> None:
    caller, others = Caller(edge, channel, "t2"), [Caller(edge, channel, name) for name in ("t1", "t3")]
    clock, over = asyncio.get_running_loop().time, False

    async def load(who: Caller) -> None:
        while not over:
            assert await who.passes()

    async with asyncio.TaskGroup() as group:
        for who in others * 2:
            group.create_task(load(who))
        assert await caller.passes()
        assert await caller.passes()
        await caller.revoke()
        began = started = last = clock()
        while await caller.passes():
            last, started = started, clock()
        for _ in range(20):
            assert not await caller.passes(), "an answer that was under way brought it back"
        over = True
    # Without a push it would be 1.8 s; how long with one shows `loadtest/bench_edge.py` on a quiet machine.
    assert last - began < 1.4, "when the last request that was served began"
