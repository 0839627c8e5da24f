"""Several streams to one process: one carries for all, lazy calls wait for others, and a standstill ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import WeirError
from libs.mux import CallContext, ClientOptions, Codec, MuxClient, MuxServer, Semantics, carrier, give_up_all
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind

CLOCK = SystemClock()
CODEC = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)


class Process(quota_pb2_grpc.QuotaServiceServicer):
    """One process that answers when the test says so; `still` of its first streams stand still after their Welcome."""

    def __init__(self, instance: str, *, still: int = 0) -> None:
        self.instance, self.still = instance, still
        self.frames: Counter[int] = Counter()
        self.answers = asyncio.Event()
        self.mux = MuxServer(codec=CODEC, handler=self._answer, instance=instance, clock=CLOCK)

    def _answer(self, call: Any, context: CallContext) -> Any:
        self.frames[id(context.session)] += 1
        return self._later() if call.reserve.tenant == "slow" else quota_pb2.QuotaReply(reserved=quota_pb2.Reserved())

    async def _later(self) -> Any:
        await self.answers.wait()
        return quota_pb2.QuotaReply(reserved=quota_pb2.Reserved())

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        if self.still:
            self.still -= 1
            await context.read()
            await context.write(CODEC.welcome(self.instance, 8))
            await asyncio.Event().wait()
        await self.mux.serve(request_iterator, context)


@contextlib.asynccontextmanager
async def clients_of(*processes: Process, options: ClientOptions | None = None) -> AsyncIterator[list[MuxClient]]:
    """A client for each place in `processes`; one process may be in several places."""
    clients: list[MuxClient] = []
    async with contextlib.AsyncExitStack() as stack:
        ports: dict[str, int] = {}
        for process in processes:
            if process.instance not in ports:
                server = make_server()
                quota_pb2_grpc.add_QuotaServiceServicer_to_server(process, server)
                ports[process.instance] = bind(server, "127.0.0.1:0", tls=None)
                await server.start()
                stack.push_async_callback(server.stop, None)

        def client(place: int, stub: Any) -> MuxClient:
            return MuxClient(
                open_stream=lambda: stub.Session(wait_for_ready=True),
                codec=CODEC,
                hello=mux_pb2.Hello(service="gateway", instance="gateway-0"),
                clock=CLOCK,
                rng=random.Random(place),
                options=options,
                on_silent=lambda: give_up_all(clients[place].instance, clients),
            )

        for place, process in enumerate(processes):
            channel = await stack.enter_async_context(make_channel(f"127.0.0.1:{ports[process.instance]}", tls=None))
            clients.append(client(place, quota_pb2_grpc.QuotaServiceStub(channel)))
        running = [asyncio.create_task(each.run()) for each in clients]
        try:
            async with asyncio.timeout(20):
                for each in clients:
                    await each.wait_connected(20)
                yield clients
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def call(tenant: str = "t") -> quota_pb2.QuotaCall:
    return quota_pb2.QuotaCall(reserve=quota_pb2.Reserve(tenant=tenant))


async def turns(condition: Callable[[], bool] = lambda: True) -> None:
    """The loop's turns until the condition holds, and some more, in which a writer that was woken writes."""
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)


async def say(client: MuxClient, tenant: str = "t") -> None:
    await client.call(call(tenant), deadline=Deadline.after(20, CLOCK), semantics=Semantics.RETRY)


def lazily(client: MuxClient) -> list[Any]:
    """A lazy call; its outcome comes into the list."""
    outcome: list[Any] = []

    def on_reply(reply: Any, error: WeirError | None) -> None:
        outcome.append(error or reply)

    deadline = Deadline.after(20, CLOCK)
    client.call_nowait(call(), deadline=deadline, semantics=Semantics.RETRY, on_reply=on_reply, lazy=True)
    return outcome


async def test_one_stream_carries_what_goes_to_one_process() -> None:
    one, other = Process("q-0"), Process("q-1")
    async with clients_of(other, one, one, other, one) as clients:
        assert [clients.index(carrier(each, clients)) for each in clients] == [0, 1, 1, 0, 1]
        for each in clients:
            await say(carrier(each, clients))
        assert list(one.frames.values()) == [3]
        assert list(other.frames.values()) == [2]


async def test_what_has_no_stream_waits_for_its_own() -> None:
    def closed() -> MuxClient:
        return MuxClient(open_stream=list, codec=CODEC, hello=mux_pb2.Hello(), clock=CLOCK, rng=random.Random(1))

    one, other = closed(), closed()
    assert carrier(other, [one, other]) is other


async def test_e7_a_process_that_stands_still_loses_its_idle_streams_too() -> None:
    """They would be found one after the other, each by calls that wait for it."""
    async with clients_of(*[Process("q-0", still=3)] * 3, options=ClientOptions(silence=0.3)) as clients:
        await say(clients[0])
        for each in clients:
            await each.wait_connected(20)
        assert [each.generation for each in clients] == [2, 2, 2]


@pytest.mark.parametrize("company", [False, True])
async def test_a_lazy_call_leaves_with_another_call_and_not_with_a_reply(company: bool) -> None:
    process = Process("q-0")
    async with clients_of(process, options=ClientOptions(lazy_hold=3600.0)) as (client,):
        asked = asyncio.ensure_future(say(client, "slow"))
        await turns(lambda: process.frames.total() > 0)
        outcome = lazily(client)
        process.answers.set()
        await asked
        await turns()
        assert (client.queued, outcome) == (1, [])
        if company:
            await say(client)
            assert (client.queued, len(outcome)) == (0, 1)


async def test_a_lazy_call_that_the_window_held_back_leaves_when_there_is_room() -> None:
    process = Process("q-0")
    process.mux._window = 1
    async with clients_of(process, options=ClientOptions(lazy_hold=3600.0)) as (client,):
        asked = asyncio.ensure_future(say(client, "slow"))
        await turns(lambda: process.frames.total() > 0)
        outcome = lazily(client)
        process.answers.set()
        await asked
        await turns(lambda: bool(outcome))
