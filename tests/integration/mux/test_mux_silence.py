"""A peer that stands still while its connection is open: found by asking it, and told from one that takes its time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import CallContext, ClientOptions, Codec, MuxClient, MuxServer, Semantics
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind

CLOCK = SystemClock()
CODEC = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
SILENCE = 0.3
CALL = quota_pb2.QuotaCall(reserve=quota_pb2.Reserve(tenant="t"))


class Peer(quota_pb2_grpc.QuotaServiceServicer):
    """Its first stream stands still after its Welcome; the others are served, as slowly as the test wants."""

    def __init__(self, *, still: bool) -> None:
        self.still = still
        self.slow = asyncio.Event()
        self.asked = 0
        self.answers = asyncio.Event()
        self.mux = MuxServer(codec=CODEC, handler=self._answer, instance="peer-0", clock=CLOCK)

    def _answer(self, call: Any, context: CallContext) -> Any:
        self.asked += 1
        return self._later()

    async def _later(self) -> Any:
        await self.answers.wait()
        return quota_pb2.QuotaReply(reserved=quota_pb2.Reserved())

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        if self.still:
            self.still = False
            await context.read()
            await context.write(CODEC.welcome("peer-0", 8))
            await asyncio.Event().wait()
        await self.mux.serve(request_iterator, context)


@contextlib.asynccontextmanager
async def client_of(peer: Peer) -> AsyncIterator[MuxClient]:
    server = make_server()
    quota_pb2_grpc.add_QuotaServiceServicer_to_server(peer, server)
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    channel = make_channel(f"127.0.0.1:{port}", tls=None)
    client = MuxClient(
        open_stream=lambda: quota_pb2_grpc.QuotaServiceStub(channel).Session(wait_for_ready=True),
        codec=CODEC,
        hello=mux_pb2.Hello(service="gateway", instance="gateway-0"),
        clock=CLOCK,
        rng=random.Random(1),
        options=ClientOptions(silence=SILENCE),
    )
    running = asyncio.create_task(client.run())
    try:
        await client.wait_connected(10)
        yield client
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await channel.close()
        await server.stop(None)


async def test_e7_a_stream_that_stands_still_is_lost_and_another_one_answers() -> None:
    peer = Peer(still=True)
    peer.answers.set()
    async with client_of(peer) as client:
        reply = await client.call(CALL, deadline=Deadline.after(30, CLOCK), semantics=Semantics.RETRY)
        assert reply.HasField("reserved")
        assert client.generation == 2


async def test_e7_what_may_run_once_only_fails_at_once() -> None:
    async with client_of(Peer(still=True)) as client:
        with pytest.raises(WeirError) as lost:
            await client.call(CALL, deadline=Deadline.after(60, CLOCK), semantics=Semantics.ONCE)
    assert lost.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_peer_that_takes_its_time_is_not_given_up() -> None:
    """It answers the question whether it is there while its handler waits."""
    peer = Peer(still=False)
    questions = asyncio.Semaphore(0)
    normal = CODEC.question

    class Asking(Codec):
        def question(self) -> Any:
            questions.release()
            return normal()

    async with client_of(peer) as client:
        client._codec = Asking.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
        call = asyncio.ensure_future(client.call(CALL, deadline=Deadline.after(60, CLOCK), semantics=Semantics.ONCE))
        async with asyncio.timeout(20):
            for _ in range(5):  # far longer than a silence lasts
                await questions.acquire()
        peer.answers.set()
        assert (await call).HasField("reserved")
        assert (client.generation, peer.asked, client.away) == (1, 1, 0.0)


async def test_a_peer_that_has_nothing_to_tell_is_not_asked_whether_it_is_there() -> None:
    """It takes no one's time: what hangs until there is news waits with it, whatever others notice meanwhile."""
    asked = asyncio.Event()
    normal = CODEC.question

    class Asking(Codec):
        def question(self) -> Any:
            asked.set()
            return normal()

    peer = Peer(still=False)
    async with client_of(peer) as client, client_of(Peer(still=True)) as other:
        client._codec = Asking.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
        hanging = asyncio.ensure_future(
            client.call(CALL, deadline=Deadline.after(60, CLOCK), semantics=Semantics.WATCH)
        )
        with pytest.raises(WeirError):  # as long as a silence lasts
            await other.call(CALL, deadline=Deadline.after(60, CLOCK), semantics=Semantics.ONCE)
        assert (asked.is_set(), client.generation) == (False, 1)
        awaited = asyncio.ensure_future(client.call(CALL, deadline=Deadline.after(60, CLOCK), semantics=Semantics.ONCE))
        async with asyncio.timeout(20):
            await asked.wait()
        peer.answers.set()
        assert (await hanging).HasField("reserved")
        assert (await awaited).HasField("reserved")
