"""Replicas of the real rate limiter, each a gRPC server on a port of its own, that can be split and killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.clock import Clock, SystemClock
from libs.deadlines import Deadline
from libs.mux import Codec, MuxClient, Semantics
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from services.ratelimit.app import RateLimitService, build
from services.ratelimit.config import Settings

CLOCK = SystemClock()
NOBODY = "127.0.0.1:1"
CODEC = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)


class NoJitter(random.Random):
    """Chance that never adds a wait; otherwise as random as any."""

    def random(self) -> float:
        """The least there is."""
        return 0.0


class _Ready(asyncio.Event):
    """`libs.service.Ready`."""

    def __call__(self) -> None:
        self.set()


@dataclass
class Node:
    """One replica with its own registry, so that a test can make it see others or not."""

    service: RateLimitService
    store: MemoryStore
    server: grpc.aio.Server
    address: str
    running: asyncio.Task[None]
    clients: list[asyncio.Task[None]] = field(default_factory=list)
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its instance."""
        return self.service._settings.instance

    async def put(self, *messages: Any) -> None:
        """Writes registry objects and waits until the replica has seen them."""
        await self._write(puts=[Put(keys.key_of(message), keys.encode(message)) for message in messages])

    async def see(self, *others: Node) -> None:
        """These other replicas exist."""
        await self.put(
            *(registry_pb2.Endpoint(service="ratelimit", instance=o.name, address=o.address) for o in others)
        )

    async def lose(self, *others: Node) -> None:
        """These other replicas are gone, as far as it knows."""
        await self.put(
            *(registry_pb2.Endpoint(service="ratelimit", instance=other.name, leaving=True) for other in others)
        )

    async def _write(self, **changes: Any) -> None:
        result = await self.store.txn(**changes)
        await self.service._view.wait_until(lambda snapshot: snapshot.revision >= result.revision)

    async def client(self, *, service: str = "gateway", instance: str = "gateway-0", life: str = "") -> MuxClient:
        """A session with it."""
        channel = make_channel(self.address, tls=None)
        self.channels.append(channel)
        stub = quota_pb2_grpc.QuotaServiceStub(channel)
        mux = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=CODEC,
            hello=mux_pb2.Hello(service=service, instance=instance, zone="zone-a", life=life),
            clock=CLOCK,
            rng=random.Random(1),
        )
        self.clients.append(asyncio.create_task(mux.run()))
        await mux.wait_connected(20)
        return mux

    def left(self, tenant: str = "acme") -> int:
        """Tokens that it thinks are left."""
        return self.service._ledger.report(tenant, "*", self.service._now()).tokens.remaining

    async def agrees(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition holds; bound it with a timeout."""
        while not condition():  # noqa: ASYNC110 - the condition lies inside the service, which has no event for it
            await asyncio.sleep(0.002)

    async def ask_edge(self, tenant: str = "acme", tokens: int = 1) -> rls_pb2.RateLimitResponse:
        """What Envoy would be told."""
        channel = make_channel(self.address, tls=None)
        self.channels.append(channel)
        request = rls_pb2.RateLimitRequest(domain="weir-edge")
        request.descriptors.add().entries.add(key="tenant", value=tenant)
        second = request.descriptors.add()
        second.entries.add(key="tenant", value=tenant)
        second.entries.add(key="unit", value="tokens")
        second.hits_addend.value = tokens
        answer: rls_pb2.RateLimitResponse = await rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(
            request, timeout=20
        )
        return answer

    async def kill(self) -> None:
        """It ends as by SIGKILL: nothing more is sent, no stream is closed in good order."""
        self.service._peers._links.clear()
        await self.server.stop(grace=None)
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def end(self) -> None:
        """Whatever is left of it."""
        for task in self.clients:
            task.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)
        for channel in self.channels:
            await channel.close()
        await self.kill()


class Cluster:
    """Makes replicas and ends them all."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    async def start(
        self,
        name: str,
        *seen: Node,
        seed: tuple[Any, ...] = (),
        store: MemoryStore | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        address: str = "127.0.0.1:0",
        **settings: Any,
    ) -> Node:
        """A replica that is ready; `seen` are those that its registry knows at its start. It has one of its own, unless
        it shares a `store`."""
        limits = registry_pb2.Limits(tenant="acme", model="*", tokens_per_minute=1000, concurrency=100)
        others = [registry_pb2.Endpoint(service="ratelimit", instance=n.name, address=n.address) for n in seen]
        store = MemoryStore() if store is None else store
        objects = {keys.key_of(m): keys.encode(m) for m in (limits, *others, *seed)}
        await store.txn(puts=[Put(key, value) for key, value in objects.items()])
        configured = Settings(
            service="ratelimit", instance=name, **({"settle_seconds": 0.0, "audit_target": ""} | settings)
        )
        service = await build(configured, clock=clock, store=store, rng=rng or NoJitter())
        server = make_server()
        service.register(server)
        port = bind(server, address, tls=None)
        await server.start()
        ready = _Ready()
        node = Node(service, store, server, f"127.0.0.1:{port}", asyncio.create_task(service.run(ready)))
        self.nodes.append(node)
        await ready.wait()
        return node

    async def pair(self, *, a_owns: bool = False, **settings: Any) -> tuple[Node, Node]:
        """Two replicas that know each other and hear each other. Each takes itself for every tenant's owner, or both
        know that it is the first."""
        a = await self.start("ratelimit-0", **({"owners": NOBODY} | settings))
        b = await self.start("ratelimit-1", a, **({"owners": a.address if a_owns else NOBODY} | settings))
        await a.see(b)
        for one, other in ((a, b), (b, a)):
            link = one.service._peers._links[other.name][1]
            await link.wait_connected(20)
        return a, b


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Ends what was started."""
    made = Cluster()
    try:
        yield made
    finally:
        for node in made.nodes:
            await node.end()


async def reserve(mux: MuxClient, request_id: str, tokens: int = 10, **more: Any) -> quota_pb2.QuotaReply:
    """One reservation of "acme"."""
    call = quota_pb2.QuotaCall(
        reserve=quota_pb2.Reserve(
            tenant="acme", model="fast", request_id=request_id, tokens=tokens, request_counted=True, **more
        )
    )
    reply: quota_pb2.QuotaReply = await mux.call(call, deadline=Deadline.after(20, CLOCK), semantics=Semantics.RETRY)
    return reply


async def settle(mux: MuxClient, request_id: str, tokens: int, **more: Any) -> bool:
    """One settlement of "acme"; whether its lease was known."""
    call = quota_pb2.QuotaCall(
        settle=quota_pb2.Settle(tenant="acme", model="fast", request_id=request_id, tokens=tokens, **more)
    )
    reply = await mux.call(call, deadline=Deadline.after(20, CLOCK), semantics=Semantics.RETRY)
    return bool(reply.settled.known)
