"""Both ends of the multiplexed stream on a real gRPC server, with streams cut at random moments."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import ClientOptions, Codec, MuxClient, MuxServer, Semantics, ServerOptions
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind

CLOCK = SystemClock()
CODEC = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
HELLO = mux_pb2.Hello(service="gateway", instance="gateway-0", zone="zone-a")


class Servicer(quota_pb2_grpc.QuotaServiceServicer):
    """Serves streams that a test can cut from the server's side."""

    def __init__(self, mux: MuxServer) -> None:
        self.mux = mux
        self.serving: set[asyncio.Task[None]] = set()

    async def Session(self, request_iterator, context):  # noqa: N802
        serving = asyncio.create_task(self.mux.serve(request_iterator, context))
        self.serving.add(serving)
        try:
            await asyncio.wait({serving})
        finally:
            self.serving.discard(serving)
            cut = serving.cancelled()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        if cut:  # grpc sends no status for a cancelled handler: end the stream by ourselves
            raise WeirError(Reason.INTERNAL, "cut")
        serving.result()


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop its turns until the condition holds (the test's timeout bounds it)."""
    while not condition():  # noqa: ASYNC110 - the condition lies inside the library, which has no event for it
        await asyncio.sleep(0)


class Mesh:
    """A server with any handler and one client."""

    def __init__(
        self, servicer: Servicer, server: grpc.aio.Server, client: MuxClient, rpcs: list[Any], address: str
    ) -> None:
        self.server_address = address
        self.servicer = servicer
        self.mux = servicer.mux
        self.server = server
        self.client = client
        self.rpcs = rpcs


@contextlib.asynccontextmanager
async def mesh(
    handler: Callable[..., Any],
    *,
    window: int = 64,
    options: ClientOptions | None = None,
    server_options: ServerOptions | None = None,
) -> AsyncIterator[Mesh]:
    mux = MuxServer(
        codec=CODEC, handler=handler, instance="q-0", clock=CLOCK, max_in_flight=window, options=server_options
    )
    servicer = Servicer(mux)
    server = make_server()
    quota_pb2_grpc.add_QuotaServiceServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    rpcs: list[Any] = []
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        stub = quota_pb2_grpc.QuotaServiceStub(channel)

        def open_stream():
            rpcs.append(stub.Session(wait_for_ready=True))
            return rpcs[-1]

        client = MuxClient(
            open_stream=open_stream, codec=CODEC, hello=HELLO, clock=CLOCK, rng=random.Random(1), options=options
        )
        running = asyncio.create_task(client.run())
        try:
            await client.wait_connected(5)
            yield Mesh(servicer, server, client, rpcs, f"127.0.0.1:{port}")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(None)


def reserve(name: str = "r", tokens: int = 1) -> quota_pb2.QuotaCall:
    return quota_pb2.QuotaCall(reserve=quota_pb2.Reserve(request_id=name, tokens=tokens))


def echo(item, ctx):
    return quota_pb2.QuotaReply(reserved=quota_pb2.Reserved(tokens=quota_pb2.LimitStatus(limit=item.reserve.tokens)))


def within(seconds: float) -> Deadline:
    return Deadline.after(seconds, CLOCK)


async def call(client: MuxClient, item, seconds: float = 20, semantics=Semantics.RETRY, **more):
    return await client.call(item, deadline=within(seconds), semantics=semantics, **more)


async def test_many_calls_get_their_own_replies_in_few_frames():
    async with mesh(echo) as m:
        replies = await asyncio.gather(*(call(m.client, reserve(tokens=i)) for i in range(500)))
        assert [reply.reserved.tokens.limit for reply in replies] == list(range(500))
        assert m.client.in_flight == m.client.queued == 0


async def test_the_handler_sees_deadline_trace_peer_and_session():
    seen: list[Any] = []
    closed = asyncio.Event()

    def handler(item, ctx):
        seen.append((ctx.deadline.remaining(CLOCK), ctx.traceparent, ctx.peer, ctx.session.hello.instance))
        if not ctx.session.state.setdefault("hooked", False):
            ctx.session.state["hooked"] = True
            ctx.session.on_close(closed.set)
        return echo(item, ctx)

    traceparent = "00-" + "1" * 32 + "-" + "2" * 16 + "-00"
    async with mesh(handler) as m:
        await call(m.client, reserve(), seconds=7, traceparent=traceparent)
        remaining, trace, peer, instance = seen[0]
        assert 6 < remaining <= 7
        assert (trace, peer, instance) == (traceparent, "gateway", "gateway-0")
        m.rpcs[0].cancel()
        await asyncio.wait_for(closed.wait(), 10)


async def test_errors_of_handlers_fail_their_call_alone(caplog):
    def handler(item, ctx):
        match item.reserve.request_id:
            case "quota":
                raise WeirError(Reason.QUOTA_TOKENS, "too many", limit="tokens_per_minute", retry_after=2.5)
            case "bug":
                raise ValueError("a user's words")
            case "none":
                return None
        return echo(item, ctx)

    async with mesh(handler) as m:
        results = await asyncio.gather(
            *(call(m.client, reserve(name)) for name in ("quota", "bug", "none", "fine")), return_exceptions=True
        )
        assert [getattr(r, "reason", None) for r in results[:3]] == [
            Reason.QUOTA_TOKENS,
            Reason.INTERNAL,
            Reason.INTERNAL,
        ]
        assert (results[0].limit, results[0].retry_after) == ("tokens_per_minute", 2.5)
        assert results[3].reserved.tokens.limit == 1
        assert m.client.generation == 1
    assert "mux_handler_failed" in caplog.text
    assert "user's words" not in caplog.text + "".join(str(vars(r)) for r in caplog.records)


async def test_awaitable_handlers_do_not_hold_up_others():
    gate = asyncio.Event()

    async def slow(item, ctx):
        await gate.wait()
        return echo(item, ctx)

    def handler(item, ctx):
        return slow(item, ctx) if item.reserve.request_id == "slow" else echo(item, ctx)

    async with mesh(handler) as m:
        waiting = asyncio.ensure_future(call(m.client, reserve("slow", 5)))
        await call(m.client, reserve("fast"))
        assert not waiting.done()
        assert m.mux.in_flight == 1
        gate.set()
        assert (await waiting).reserved.tokens.limit == 5


async def test_cancelling_the_caller_and_passing_deadlines_cancel_the_handler():
    events: list[str] = []
    started, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def handler(item, ctx):
        started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append(item.reserve.request_id)
            ended.release()
            raise

    async with mesh(handler) as m:
        caller = asyncio.ensure_future(call(m.client, reserve("cancelled")))
        await started.acquire()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await ended.acquire()
        with pytest.raises(WeirError) as caught:
            await call(m.client, reserve("late"), seconds=0.05)
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED
        await ended.acquire()
        assert events == ["cancelled", "late"]
        assert m.mux.in_flight == m.client.in_flight == 0


async def test_a_full_window_holds_calls_back_inside_their_deadline():
    gates: list[asyncio.Future[Any]] = []

    def handler(item, ctx):
        gates.append(asyncio.get_running_loop().create_future())
        return gates[-1]

    async with mesh(handler, window=2, options=ClientOptions(max_queued=2)) as m:
        held = [asyncio.ensure_future(call(m.client, reserve())) for _ in range(2)]
        await until(lambda: len(gates) == 2)
        patient = asyncio.ensure_future(call(m.client, reserve("patient")))
        with pytest.raises(WeirError) as late:
            await call(m.client, reserve("hasty"), seconds=0.03)
        assert late.value.reason is Reason.DEADLINE_EXCEEDED
        also = asyncio.ensure_future(call(m.client, reserve("also")))
        await asyncio.sleep(0)
        with pytest.raises(WeirError) as full:
            await call(m.client, reserve("one too many"))
        assert (full.value.reason, full.value.limit) == (Reason.REJECTED_QUEUE_FULL, "mux_queue")
        gates[0].set_result(echo(reserve(), None))
        gates[1].set_result(echo(reserve(), None))
        await until(lambda: len(gates) == 4)
        gates[2].set_result(echo(reserve(), None))
        gates[3].set_result(echo(reserve(), None))
        await asyncio.gather(*held, patient, also)


async def test_an_item_too_large_for_a_message_is_refused_alone():
    async with mesh(echo, options=ClientOptions(max_item_bytes=1000)) as m:
        with pytest.raises(WeirError) as caught:
            await call(m.client, reserve("x" * 2000))
        assert caught.value.reason is Reason.PAYLOAD_TOO_LARGE
        await call(m.client, reserve())


async def test_callbacks_get_exactly_one_outcome_and_none_after_a_cancel():
    got: list[Any] = []
    done = asyncio.Event()

    def on_reply(reply, error):
        got.append((reply, error))
        done.set()
        raise RuntimeError("a broken callback harms nobody")

    async with mesh(echo) as m:
        handle = m.client.call_nowait(reserve(), deadline=within(5), semantics=Semantics.ONCE, on_reply=got.append)
        m.client.cancel(handle)
        m.client.cancel(handle)
        m.client.call_nowait(reserve(tokens=3), deadline=within(5), semantics=Semantics.ONCE, on_reply=on_reply)
        assert got == []
        await done.wait()
        assert got[0][0].reserved.tokens.limit == 3
        assert got[0][1] is None
        await call(m.client, reserve())
        assert len(got) == 1


async def test_calls_pinned_to_a_lost_stream_fail_and_others_move():
    async with mesh(echo) as m:
        m.rpcs[0].cancel()
        pinned = asyncio.ensure_future(call(m.client, reserve(), generation=1))
        free = asyncio.ensure_future(call(m.client, reserve(), semantics=Semantics.ONCE))
        with pytest.raises(WeirError) as caught:
            await pinned
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        with contextlib.suppress(WeirError):  # lost only if it was written before the stream was seen to be dead
            await free
        await call(m.client, reserve())
        assert m.client.generation >= 2


async def test_a_client_without_a_server_fails_within_the_deadline_and_recovers():
    async with mesh(echo) as m:
        await m.server.stop(None)
        with pytest.raises(WeirError) as caught:
            await call(m.client, reserve(), seconds=0.2)
        assert caught.value.reason in (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
        await until(lambda: not m.client.connected)
        with pytest.raises(WeirError) as unreachable:
            await call(m.client, reserve(), seconds=0.1)
        assert unreachable.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_draining_moves_new_calls_and_finishes_old_ones():
    """Two servers behind one client: the first drains while calls run and arrive."""
    gate = asyncio.Event()
    executed: Counter[str] = Counter()

    async def handler(item, ctx):
        executed[item.reserve.request_id] += 1
        if item.reserve.request_id.startswith("slow"):
            await gate.wait()
        return echo(item, ctx)

    async with mesh(handler) as m:
        old = m.mux
        slow = [asyncio.ensure_future(call(m.client, reserve(f"slow{i}"), semantics=Semantics.ONCE)) for i in range(5)]
        await until(lambda: old.in_flight == 5)
        m.servicer.mux = MuxServer(codec=CODEC, handler=handler, instance="q-1", clock=CLOCK)
        burst = [asyncio.ensure_future(call(m.client, reserve(f"b{i}"), semantics=Semantics.ONCE)) for i in range(50)]
        draining = asyncio.ensure_future(old.drain())
        await asyncio.gather(*burst)
        more = await asyncio.gather(*(call(m.client, reserve(f"n{i}"), semantics=Semantics.ONCE) for i in range(50)))
        assert len(more) == 50
        assert m.client.instance == "q-1"
        assert not draining.done()
        gate.set()
        await asyncio.gather(*slow)
        await draining
        assert old.sessions == 0
        assert set(executed.values()) == {1}
        assert sum(executed.values()) == 105


async def test_rebalancing_opens_every_stream_anew_and_loses_no_call():
    slow: list[asyncio.Future[Any]] = []

    def handler(call, _):
        if call.reserve.request_id != "slow":
            return quota_pb2.QuotaReply(reserved=quota_pb2.Reserved())
        slow.append(asyncio.get_running_loop().create_future())
        return slow[-1]

    async with mesh(handler) as m:
        deadline = Deadline.after(20, CLOCK)
        running = asyncio.create_task(m.client.call(reserve("slow"), deadline=deadline, semantics=Semantics.ONCE))
        await until(lambda: bool(slow))
        m.mux.rebalance()
        await until(lambda: not m.client.connected)
        assert m.client.moving
        after = [
            asyncio.create_task(m.client.call(reserve(str(number)), deadline=deadline, semantics=Semantics.ONCE))
            for number in range(20)
        ]
        assert all(reply.HasField("reserved") for reply in await asyncio.gather(*after))
        await until(lambda: m.client.generation == 2)
        assert not m.client.moving
        assert not running.done()
        slow[0].set_result(quota_pb2.QuotaReply(reserved=quota_pb2.Reserved()))
        assert (await running).HasField("reserved")
        await until(lambda: m.mux.sessions == 1)


async def test_d4_a_call_that_its_server_does_not_own_any_more_is_sent_again_after_the_move():
    """Only on a stream that was sent away: otherwise the caller is to hear it."""
    asked = 0

    def handler(item, context):
        nonlocal asked
        asked += 1
        if asked < 3:
            if asked == 2:
                m.mux.rebalance(which=lambda session: session is context.session)
            raise WeirError(Reason.NOT_OWNER, "ask the owner", limit="1@there")
        return echo(item, context)

    async with mesh(handler) as m:
        with pytest.raises(WeirError) as caught:
            await call(m.client, reserve(), semantics=Semantics.ONCE)
        assert (caught.value.reason, caught.value.limit) == (Reason.NOT_OWNER, "1@there")
        await call(m.client, reserve(), semantics=Semantics.ONCE)
        assert (asked, m.client.generation) == (3, 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_disconnects_leave_every_call_with_one_outcome(seed: int):
    """Streams are cut on either side, at random, while calls of both kinds run."""
    rng = random.Random(seed)
    executed: Counter[str] = Counter()

    async def later(item, ctx):
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        return echo(item, ctx)

    def handler(item, ctx):
        executed[item.reserve.request_id] += 1
        return later(item, ctx) if rng.random() < 0.3 else echo(item, ctx)

    async with mesh(handler, window=16, options=ClientOptions(max_attempts=10_000, max_retry=0.05)) as m:
        stop = asyncio.Event()

        async def cut() -> None:
            while not stop.is_set():
                generation = m.client.generation
                for _ in range(rng.randrange(1, 200)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    m.rpcs[-1].cancel()
                else:
                    for task in list(m.servicer.serving):
                        task.cancel()
                while m.client.generation == generation and not stop.is_set():  # noqa: ASYNC110 - as in until()
                    await asyncio.sleep(0.001)

        async def one(number: int) -> tuple[str, bool]:
            once = number % 2 == 0
            name = f"{number}"
            for _ in range(rng.randrange(50)):
                await asyncio.sleep(0)
            semantics = Semantics.ONCE if once else Semantics.RETRY
            lost = pytest.raises(WeirError, match="lost") if once else contextlib.nullcontext()
            reply = None
            with contextlib.suppress(pytest.fail.Exception), lost:  # a ONCE call may also come through
                reply = await call(m.client, reserve(name, number), seconds=60, semantics=semantics)
            if reply is None:
                return name, False
            assert reply.reserved.tokens.limit == number
            return name, True

        cutter = asyncio.create_task(cut())
        outcomes: list[tuple[str, bool]] = []
        for wave in range(8):
            outcomes += await asyncio.gather(*(one(wave * 100 + i) for i in range(100)))
        stop.set()
        await cutter
        assert len(outcomes) == 800
        assert m.client.generation > 3, "the test must have cut streams"
        assert m.client.in_flight == m.client.queued == 0
        for name, answered in outcomes:
            if int(name) % 2 == 0:
                assert executed[name] <= 1
            if answered:
                assert executed[name] >= 1


async def test_frames_out_of_order_end_the_stream_with_a_reason():
    async with mesh(echo) as m, make_channel_of(m) as channel:
        rpc = quota_pb2_grpc.QuotaServiceStub(channel).Session()
        await rpc.write(quota_pb2.SessionRequest(cancel=mux_pb2.CancelCalls(ids=[1])))
        assert await rpc.code() is grpc.StatusCode.INVALID_ARGUMENT


class Over:
    """A stream whose end has come before the first word is said on it."""

    def __init__(self, rpc: Any) -> None:
        self._rpc = rpc

    async def write(self, frame: Any) -> None:
        await self._rpc.code()
        await self._rpc.write(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rpc, name)


async def test_a_stream_that_is_refused_before_hello_is_written_is_told_as_refused():
    refusals: asyncio.Queue[WeirError] = asyncio.Queue()

    class Refusing(quota_pb2_grpc.QuotaServiceServicer):
        async def Session(self, request_iterator, context):  # noqa: N802
            raise WeirError(Reason.NOT_OWNER, "it is elsewhere", limit="7@10.0.0.1:1")

    server = make_server()
    quota_pb2_grpc.add_QuotaServiceServicer_to_server(Refusing(), server)
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    async with make_channel(f"127.0.0.1:{port}", tls=None, translate_errors=False) as channel:
        session = quota_pb2_grpc.QuotaServiceStub(channel).Session
        client = MuxClient(
            open_stream=lambda: Over(session(wait_for_ready=True)),
            codec=CODEC,
            hello=HELLO,
            clock=CLOCK,
            rng=random.Random(1),
            on_refused=refusals.put_nowait,
        )
        running = asyncio.create_task(client.run())
        refusal = await asyncio.wait_for(refusals.get(), 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await server.stop(None)
    assert (refusal.reason, refusal.limit) == (Reason.NOT_OWNER, "7@10.0.0.1:1")


async def test_calls_past_their_deadline_or_without_one_are_not_executed():
    executed: list[Any] = []

    def handler(item, ctx):
        executed.append(item)
        return echo(item, ctx)

    async with mesh(handler) as m, make_channel_of(m) as channel:
        rpc = quota_pb2_grpc.QuotaServiceStub(channel).Session()
        await rpc.write(quota_pb2.SessionRequest(hello=HELLO))
        await rpc.read()
        late, endless = reserve("late"), reserve("endless")
        late.header.id, endless.header.id = 1, 2
        late.header.remaining.nanos = -5
        await rpc.write(CODEC.calls([late, endless]))
        replies = (await rpc.read()).replies.items
        reasons = [WeirError.from_status(reply.header.error).reason for reply in replies]
        assert reasons == [Reason.DEADLINE_EXCEEDED, Reason.INVALID_REQUEST]
        assert executed == []
        await rpc.done_writing()
        assert await rpc.read() is grpc.aio.EOF


async def test_a_flood_beyond_the_window_is_refused_not_buffered():
    def handler(item, ctx):
        return asyncio.get_running_loop().create_future()

    async with mesh(handler, window=4) as m, make_channel_of(m) as channel:
        rpc = quota_pb2_grpc.QuotaServiceStub(channel).Session()
        await rpc.write(quota_pb2.SessionRequest(hello=HELLO))
        await rpc.read()
        calls = [reserve(str(number)) for number in range(1, 13)]
        for number, item in enumerate(calls, start=1):
            item.header.id = number
            item.header.remaining.seconds = 60
        await rpc.write(CODEC.calls(calls))
        refused = (await rpc.read()).replies.items
        assert [WeirError.from_status(r.header.error).limit for r in refused] == ["mux_window"] * len(refused)
        assert m.mux.in_flight == 8
        rpc.cancel()


@contextlib.asynccontextmanager
async def make_channel_of(m: Mesh) -> AsyncIterator[grpc.aio.Channel]:
    async with make_channel(m.server_address, tls=None) as channel:
        yield channel
