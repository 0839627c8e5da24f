"""The rate limiter as a real server on a free port, and clients for both of its protocols."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.clock import Clock, SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put
from libs.registry.keys import encode, key_of
from libs.rpc import make_channel
from libs.service import serve
from services.ratelimit.app import RateLimitService, build
from services.ratelimit.config import Settings


@dataclass
class Mesh:
    """A running rate limiter."""

    service: RateLimitService
    store: MemoryStore
    edge: Any
    quota: MuxClient

    async def set_limits(self, tenant: str, model: str = "*", **limits: int) -> None:
        message = registry_pb2.Limits(tenant=tenant, model=model, **limits)
        result = await self.store.txn(puts=[Put(key_of(message), encode(message))])
        await self.service._view.wait_until(lambda snapshot: snapshot.revision >= result.revision)

    async def ask_edge(self, tenant: str, tokens: int = 1) -> rls_pb2.RateLimitResponse:
        request = rls_pb2.RateLimitRequest(domain="weir-edge")
        request.descriptors.add().entries.add(key="tenant", value=tenant)
        second = request.descriptors.add()
        second.entries.add(key="tenant", value=tenant)
        second.entries.add(key="unit", value="tokens")
        second.hits_addend.value = tokens
        return await self.edge.ShouldRateLimit(request, timeout=10)

    async def _call(self, call: quota_pb2.QuotaCall) -> quota_pb2.QuotaReply:
        return await self.quota.call(call, deadline=Deadline.after(20, SystemClock()), semantics=Semantics.RETRY)

    async def reserve(
        self, request_id: str, tokens: int = 10, *, tenant: str = "acme", model: str = "fast", counted: bool = True
    ) -> quota_pb2.QuotaReply:
        return await self._call(
            quota_pb2.QuotaCall(
                reserve=quota_pb2.Reserve(
                    tenant=tenant, model=model, request_id=request_id, tokens=tokens, request_counted=counted
                )
            )
        )

    async def settle(
        self, request_id: str, tokens: int, *, tenant: str = "acme", model: str = "fast"
    ) -> quota_pb2.QuotaReply:
        return await self._call(
            quota_pb2.QuotaCall(
                settle=quota_pb2.Settle(tenant=tenant, model=model, request_id=request_id, tokens=tokens)
            )
        )


class NoJitter(random.Random):
    """Chance that never adds a wait; otherwise as random as any."""

    def random(self) -> float:
        """The least there is."""
        return 0.0


Start = Callable[..., contextlib.AbstractAsyncContextManager[Mesh]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a rate limiter whose state lives in this test's directory.

    `limits` are those of "acme" from the start; without `registry`, the store does not answer.
    """

    @contextlib.asynccontextmanager
    async def started(
        *,
        clock: Clock | None = None,
        limits: dict[str, int] | None = None,
        registry: bool = True,
        rng: random.Random | None = None,
        **settings: Any,
    ) -> AsyncIterator[Mesh]:
        configured = Settings(
            service="ratelimit",
            instance="ratelimit-0",
            **({"state_dir": str(tmp_path / "state"), "audit_target": ""} | settings),
        )
        store = MemoryStore()
        seed = registry_pb2.Limits(tenant="acme", model="*", **(limits or {}))
        await store.txn(puts=[Put(key_of(seed), encode(seed))])
        store.set_available(registry)
        service = await build(configured, clock=clock, store=store, rng=rng or NoJitter())
        async with serve(service, configured) as running, contextlib.AsyncExitStack() as stack:
            await running.ready.wait()
            channel = await stack.enter_async_context(make_channel(f"127.0.0.1:{running.port}", tls=None))
            stub = quota_pb2_grpc.QuotaServiceStub(channel)
            client = MuxClient(
                open_stream=lambda: stub.Session(wait_for_ready=True),
                codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
                hello=mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a"),
                clock=SystemClock(),
                rng=random.Random(1),
            )
            task = asyncio.create_task(client.run())
            stack.push_async_callback(_end, task)
            yield Mesh(service, store, rls_pb2_grpc.RateLimitServiceStub(channel), client)

    return started


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
