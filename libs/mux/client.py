"""The calling end: one task that keeps a stream open, one writer per stream, plain futures for the callers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError, from_rpc_error
from libs.mux.backoff import Backoff
from libs.mux.codec import Codec, set_call_header
from libs.mux.core import NEVER, Call, ClientCore, Ended, Outcome, Semantics, Stream
from libs.mux.endings import MuxCall, OnReply, failure, settle
from libs.mux.link import Link, cancelled_by_owner, greet
from libs.mux.options import ClientOptions
from libs.mux.outage import Outage
from libs.mux.pacer import Pacer
from libs.telemetry import get_logger

log = get_logger(__name__)

# What a dead stream raises: its status, a write after its end, or (when its channel is closed) a cancellation.
_FAULTS = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)


class MuxClient:
    """Calls one service over one multiplexed stream. Not thread-safe: one event loop.

    Run `run()` in a task for the client's whole life; calls made before or between streams wait inside their
    deadlines. Every call ends exactly once: with its reply, with the server's `WeirError`, or with

    - DEADLINE_EXCEEDED: its deadline passed while the server had it, or while it waited for the window;
    - DEPENDENCY_UNAVAILABLE: no stream within the deadline, or its stream was lost (`Semantics.ONCE`);
    - REJECTED_QUEUE_FULL (limit "mux_queue"): too many calls wait already;
    - PAYLOAD_TOO_LARGE: the item would not fit a message.
    """

    def __init__(
        self,
        *,
        open_stream: Callable[[], Any],
        codec: Codec,
        hello: mux_pb2.Hello,
        clock: Clock,
        rng: random.Random,
        options: ClientOptions | None = None,
        on_stream: Callable[[int], None] | None = None,
        on_refused: Callable[[WeirError], None] | None = None,
        on_silent: Callable[[], None] | None = None,
    ) -> None:
        """`open_stream` starts the RPC: `lambda: stub.Session(wait_for_ready=True)`. `on_stream` is called with the
        generation each time a stream is open, before any call is written on it; `on_refused` when one is not opened;
        `on_silent` when one is lost because its peer stands still."""
        self._open_stream = open_stream
        self._codec = codec
        self._hello = hello
        self._clock = clock
        self._options = options or ClientOptions()
        self._on_stream, self._on_refused, self._on_silent = on_stream, on_refused, on_silent
        self._core: ClientCore[Any] = ClientCore(
            max_queued=self._options.max_queued, max_attempts=self._options.max_attempts
        )
        self._backoff = Backoff(first=self._options.first_retry, cap=self._options.max_retry, uniform=rng.random)
        self._links: dict[int, Link] = {}  # by generation; more than one only while an old stream drains
        self._connected = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._lazy: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._instance, self._moving = "", False
        self._outage = Outage(codec.domain, clock)

    @property
    def connected(self) -> bool:
        """A stream is open and takes calls."""
        return self._core.current is not None

    @property
    def moving(self) -> bool:
        """There is no stream because the server sent it away, and another is being opened: worth waiting for. False
        again as soon as that has worked, or failed once."""
        return self._moving and not self.connected

    @property
    def away(self) -> float:
        """Seconds without a stream; 0 while there is one."""
        return self._outage.seconds

    @property
    def generation(self) -> int:
        """Number of the present (or last) stream; +1 per new stream, 0 before the first."""
        return self._core.generation

    @property
    def instance(self) -> str:
        """The instance id that the server gave last; another one means that stream state is gone."""
        return self._instance

    @property
    def queued(self) -> int:
        """Calls that wait for the window or for a stream."""
        return self._core.queued

    @property
    def in_flight(self) -> int:
        """Calls written and not answered."""
        return self._core.in_flight

    async def wait_connected(self, timeout: float) -> None:  # noqa: ASYNC109 - the error is ours, not TimeoutError
        """Return once a stream is open.

        :raises WeirError: DEPENDENCY_UNAVAILABLE after `timeout` seconds without one.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._connected.wait()
        except TimeoutError as error:
            raise failure(Outcome.UNAVAILABLE, self._codec.domain) from error

    # ---- calls ---------------------------------------------------------------------------------------------------

    async def call(
        self, item: Any, *, deadline: Deadline, semantics: Semantics, traceparent: str = "", generation: int = 0
    ) -> Any:
        """Send one item and return its reply item. The item's header is filled here.

        `generation` pins the call to one stream (0: any): on another it fails with DEPENDENCY_UNAVAILABLE without
        being written. Cancelling the caller cancels the call at the server.

        :raises WeirError: see the class.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = self._submit(item, deadline, semantics, future, traceparent, generation)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(call)
            raise

    def call_nowait(
        self,
        item: Any,
        *,
        deadline: Deadline,
        semantics: Semantics,
        on_reply: OnReply,
        traceparent: str = "",
        generation: int = 0,
        lazy: bool = False,
    ) -> MuxCall:
        """As `call`, with a callback instead of a task: for batches once per engine step. A `lazy` call is one that
        nobody waits for: it leaves with the next other call, or by itself a little later.

        `on_reply` is called exactly once, unless the call is cancelled; never from inside this method.

        :raises WeirError: REJECTED_QUEUE_FULL, PAYLOAD_TOO_LARGE, or DEPENDENCY_UNAVAILABLE when closed.
        """
        return self._submit(item, deadline, semantics, on_reply, traceparent, generation, lazy=lazy)

    def give_up(self) -> None:
        """Loses the streams that are open, with what that means for their calls, and opens another."""
        for link in self._links.values():
            link.rpc.cancel()

    def cancel(self, call: MuxCall) -> None:
        """Give up a call: its callback is not called any more; the server is told. A finished call is ignored."""
        if self._core.cancel(call):
            self._wake(call.stream)

    def _submit(
        self,
        item: Any,
        deadline: Deadline,
        semantics: Semantics,
        waiter: Any,
        traceparent: str,
        generation: int,
        *,
        lazy: bool = False,
    ) -> MuxCall:
        size = item.ByteSize()
        if size > self._options.max_item_bytes:
            raise WeirError(Reason.PAYLOAD_TOO_LARGE, "the item is too large for one message", limit="mux_item_bytes")
        call: MuxCall = Call(
            item,
            deadline=deadline.at,
            semantics=semantics,
            waiter=waiter,
            traceparent=traceparent,
            pinned=generation,
            size=size,
        )
        if not (core := self._core).submit(call):
            if core.closed:
                raise failure(Outcome.CLOSED, self._codec.domain)
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many calls wait for the service", limit="mux_queue")
        if core.next_deadline < self._timer_at:
            self._arm_timer()
        if core.has_work:
            if not lazy:
                self._wake(core.current)
            elif self._lazy is None:
                self._lazy = asyncio.get_running_loop().call_later(self._options.lazy_hold, self._wake_lazy)
        return call

    # ---- the life of the connection ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a stream open, until cancelled; then every call ends with DEPENDENCY_UNAVAILABLE."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._run_once(group)
        finally:
            for timer in (self._timer, self._lazy):
                if timer is not None:
                    timer.cancel()
            self._connected.clear()
            self._end(self._core.close())

    async def _run_once(self, group: asyncio.TaskGroup) -> None:
        """Open a stream and return when another should be opened."""
        link = await self._connect()
        self._moving = False
        if link is None:
            await asyncio.sleep(self._backoff.next())
            return
        opened_at = self._clock.monotonic()
        group.create_task(self._drive(link))
        await link.retired.wait()
        self._connected.clear()
        self._outage.begin()
        if self._clock.monotonic() - opened_at >= self._options.stable_after:
            self._backoff.reset()
            if link.stream.draining:
                return  # asked to move: no reason to wait
        await asyncio.sleep(self._backoff.next())

    async def _connect(self) -> Link | None:
        rpc = self._open_stream()
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                frame = await greet(rpc, self._codec.hello(self._hello))
        except (*_FAULTS, asyncio.CancelledError) as error:
            rpc.cancel()
            if isinstance(error, asyncio.CancelledError) and cancelled_by_owner():
                raise
            self._outage.report(error)
            if self._on_refused is not None and isinstance(error, grpc.aio.AioRpcError):
                self._on_refused(from_rpc_error(error))
            return None
        except Exception as error:  # whatever else a dying channel raises: try the next stream, not the process's end
            log.error("mux_connect_failed", domain=self._codec.domain, exc_info=error)
            rpc.cancel()
            return None
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "welcome":
            rpc.cancel()
            self._outage.report(None)
            return None
        stream = self._core.open(frame.welcome.max_in_flight)
        self._instance = frame.welcome.instance
        link = self._links[stream.generation] = Link(
            rpc, stream, silence=self._options.silence, on_silent=self._on_silent
        )
        self._outage.end()
        log.info("mux_connected", domain=self._codec.domain, peer=self._instance, generation=stream.generation)
        if self._on_stream is not None:
            self._on_stream(stream.generation)
        self._connected.set()
        return link

    async def _drive(self, link: Link) -> None:
        """Read and write one stream until it ends."""
        writer = asyncio.create_task(self._write(link))
        try:
            await self._read(link)
        except (*_FAULTS, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled_by_owner():
                raise
            self._outage.report(TimeoutError() if link.silent else error)
        except Exception as error:  # a fault of one stream ends that stream; what it had in flight is settled below
            log.error("mux_stream_failed", domain=self._codec.domain, exc_info=error)
        finally:
            del self._links[link.stream.generation]
            link.close()
            link.rpc.cancel()
            self._end(self._core.lose(link.stream))
            link.retired.set()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, link: Link) -> None:
        """Write whatever is queued, all of it in one frame, then wait for more."""
        stream, rpc, options = link.stream, link.rpc, self._options
        pacer = Pacer(longest=options.longest_hold)
        try:
            while True:
                if stream.cancels:
                    ids, stream.cancels = stream.cancels, []
                    await rpc.write(self._codec.cancel(ids))
                    continue
                if link.asks:
                    link.asks = False
                    await rpc.write(self._codec.question())
                now = self._clock.monotonic()
                if self._core.has_work and (hold := pacer.hold(now)) > 0:
                    await asyncio.sleep(hold)
                    now = self._clock.monotonic()
                calls, ended = self._core.take(
                    stream, now, max_items=options.max_frame_items, max_bytes=options.max_frame_bytes
                )
                self._end(ended)
                if calls:
                    pacer.wrote(len(calls), now)
                    for call in calls:
                        set_call_header(call.item, call.id, call.deadline - now, call.traceparent)
                    del call  # nothing of a call, which may hold a user's words, waits here for the next one
                    link.watch()
                    await rpc.write(self._codec.calls([call.item for call in calls]))
                elif stream.finished:
                    await rpc.done_writing()
                    return
                else:
                    await link.wake.wait()
        except _FAULTS:
            return  # the reader sees the stream's status
        except Exception as error:  # a frame that cannot be built must not leave the stream without a writer
            log.error("mux_write_failed", domain=self._codec.domain, exc_info=error)
            rpc.cancel()

    async def _read(self, link: Link) -> None:
        stream, rpc = link.stream, link.rpc
        while (frame := await rpc.read()) is not grpc.aio.EOF:
            link.heard()
            kind = frame.WhichOneof("frame")
            if kind == "replies":
                full = self._core.queued > 0 and not self._core.has_work
                self._answer(stream, frame.replies.items)
                if stream.draining or full:  # else what is queued is lazy, and a reply is no company
                    link.wake.set()
            elif kind == "go_away":
                log.info("mux_go_away", domain=self._codec.domain, peer=self._instance, why=frame.go_away.reason)
                self._core.drain(stream)
                self._moving = not self.connected
                link.retired.set()
                link.wake.set()
            del frame  # as `call` above

    def _answer(self, stream: Stream[Any], replies: Any) -> None:
        answer = self._core.answer
        refused: list[int] = []
        for reply in replies:
            header = reply.header
            error: WeirError | None = None
            if header.HasField("error"):
                error = WeirError.from_status(header.error)
                if stream.draining and error.reason in (Reason.DRAINING, Reason.NOT_OWNER):
                    refused.append(header.id)
                    continue
            call = answer(stream, header.id)
            if call is not None:
                settle(call, reply, error, self._codec.domain)
        if refused:
            self._end(self._core.refuse(stream, refused))
            self._wake(self._core.current)

    def _end(self, ended: Ended[Any]) -> None:
        for call, outcome in ended:
            settle(call, None, failure(outcome, self._codec.domain), self._codec.domain)

    def _arm_timer(self) -> None:
        """One timer for all calls, armed for the nearest deadline; calls that end in time never touch it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._core.next_deadline
        delay = max(self._options.timer_granularity, self._timer_at - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        self._end(self._core.expire(self._clock.monotonic()))
        for link in self._links.values():
            if link.stream.cancels or link.stream.draining:
                link.wake.set()
        if self._core.next_deadline != NEVER:
            self._arm_timer()

    def _wake_lazy(self) -> None:
        self._lazy = None
        if self._core.has_work:
            self._wake(self._core.current)

    def _wake(self, stream: Stream[Any] | None) -> None:
        if stream is not None and (link := self._links.get(stream.generation)) is not None:
            link.wake.set()
