"""One stream at the answering end."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable
from typing import Any

import grpc

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux.codec import Codec
from libs.mux.core import NEVER
from libs.mux.options import ServerOptions
from libs.mux.session import CallContext, Session
from libs.mux.wake import Wake
from libs.telemetry import get_logger
from libs.telemetry.tracing import SERVER, Span, is_sampled, span

log = get_logger(__name__)

_INTERNAL = WeirError(Reason.INTERNAL, "internal error; the trace id finds it").to_status()
_NO_DEADLINE = WeirError(Reason.INVALID_REQUEST, "a deadline is required", limit="remaining").to_status()
_EXPIRED = WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed").to_status()
_DRAINING = WeirError(Reason.DRAINING, "the server is draining").to_status()
_OVERRUN = WeirError(Reason.REJECTED_QUEUE_FULL, "more calls than the window allows", limit="mux_window").to_status()
_CANCELLED = WeirError(Reason.CANCELLED, "the call was cancelled").to_status()
_NANOS = 1e-9


class _Pending:
    """A call whose handler has not finished."""

    __slots__ = ("deadline", "future", "span")

    def __init__(self, future: asyncio.Future[Any], deadline: float, call_span: Span | None) -> None:
        self.future = future
        self.deadline = deadline
        self.span = call_span


class Connection:
    """Reads, dispatches and answers the calls of one stream, until the client half-closes or is lost."""

    def __init__(
        self,
        *,
        context: grpc.aio.ServicerContext,
        codec: Codec,
        handler: Callable[[Any, CallContext], Any],
        session: Session,
        clock: Clock,
        options: ServerOptions,
        max_in_flight: int,
    ) -> None:
        self._context: Any = context
        self._codec = codec
        self._handler = handler
        self._session = session
        self._clock = clock
        self._options = options
        # A client frees a slot when it cancels, maybe before our answer to that call has left: hence twice.
        self._limit = 2 * max_in_flight
        self._pending: dict[int, _Pending] = {}
        self._out: list[Any] = []
        self._go_away = ""
        self._told = False
        self._ending = False
        self._writable = Wake()  # the writer waits for something to write
        self._flushed = Wake()  # the reader waits for replies to leave
        self._next_deadline = NEVER
        self._timer: asyncio.TimerHandle | None = None

    @property
    def session(self) -> Session:
        """What its handlers see of the stream."""
        return self._session

    @property
    def pending(self) -> int:
        """Calls whose handlers have not finished."""
        return len(self._pending)

    def go_away(self, reason: str) -> None:
        """Tell the client to move; calls that still come are refused, those under way finish."""
        self._go_away = reason
        self._writable.set()

    async def run(self) -> None:
        """Serve to the end of the stream.

        :raises WeirError: INVALID_REQUEST when the client breaks the protocol.
        """
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
            self._ending = True
            self._writable.set()
            await writer
        finally:
            writer.cancel()
            if self._timer is not None:
                self._timer.cancel()
            abandoned = [entry.future for entry in self._pending.values()]
            for entry in self._pending.values():
                _end_span(entry.span, Reason.CANCELLED.name)
            self._pending.clear()
            for future in abandoned:
                future.cancel()
            await asyncio.gather(writer, *abandoned, return_exceptions=True)
            self._run_close_hooks()

    def _run_close_hooks(self) -> None:
        for hook in self._session.take_close_hooks():
            try:
                hook()
            except Exception as error:  # one hook's fault must not keep the others from releasing what they hold
                self._log_fault("mux_close_hook_failed", "", error)

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        context = self._context
        while (frame := await context.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "calls":
                self._dispatch(frame.calls.items)
                if self._out:
                    self._writable.set()
                    while len(self._out) >= self._limit:
                        await self._flushed.wait()
            elif kind == "cancel":
                self._cancel(frame.cancel.ids)
            else:
                raise WeirError(Reason.INVALID_REQUEST, "unexpected frame", limit=kind or "frame")

    def _dispatch(self, items: Any) -> None:
        """Run the handler on every call of a frame; what it answers directly is queued in the same tick."""
        now = self._clock.monotonic()
        handler, session, out, reply_type = self._handler, self._session, self._out, self._codec.reply_type
        for item in items:
            header = item.header
            call_id = header.id
            remaining = header.remaining
            seconds = remaining.seconds + remaining.nanos * _NANOS
            refusal = self._refusal(item, seconds)
            if refusal is not None:
                out.append(self._codec.failure(call_id, refusal))
                continue
            traceparent = header.traceparent
            call_span: Span | None = None
            if traceparent and is_sampled(traceparent):
                call_span = span(f"{self._codec.domain}.{self._codec.op_of(item)}", traceparent, kind=SERVER)
                traceparent = call_span.traceparent
            deadline = Deadline(now + seconds)
            try:
                result = handler(item, CallContext(call_id, deadline, traceparent, session))
                if type(result) is reply_type:
                    result.header.id = call_id
                    out.append(result)
                    if call_span is not None:
                        call_span.end()
                else:
                    self._await(call_id, asyncio.ensure_future(result), deadline.at, call_span)
            except Exception as error:  # the boundary: every failure must become this call's reply
                out.append(self._failed(call_id, error, call_span))

    def _refusal(self, item: Any, seconds: float) -> Any:
        """The status of a call that is not even started, or None."""
        if seconds <= 0:
            return _EXPIRED if item.header.HasField("remaining") else _NO_DEADLINE
        if self._go_away:
            return _DRAINING
        if len(self._pending) + len(self._out) >= self._limit:
            return _OVERRUN
        return None

    def _cancel(self, ids: Any) -> None:
        for call_id in ids:
            entry = self._pending.pop(call_id, None)
            if entry is not None:
                entry.future.cancel()
                _end_span(entry.span, Reason.CANCELLED.name)

    # ---- calls that take time ------------------------------------------------------------------------------------

    def _await(self, call_id: int, future: asyncio.Future[Any], deadline: float, call_span: Span | None) -> None:
        if call_id in self._pending:
            future.cancel()
            raise WeirError(Reason.INVALID_REQUEST, "the call id is in use", limit="id")
        self._pending[call_id] = _Pending(future, deadline, call_span)
        future.add_done_callback(functools.partial(self._finished, call_id))
        if deadline < self._next_deadline:
            self._arm_timer(deadline)

    def _finished(self, call_id: int, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        entry = self._pending.get(call_id)
        if entry is None or entry.future is not future:
            return  # cancelled or expired; nobody waits
        del self._pending[call_id]
        if future.cancelled():
            self._out.append(self._codec.failure(call_id, _CANCELLED))
            _end_span(entry.span, Reason.CANCELLED.name)
        elif error is not None:
            self._out.append(self._failed(call_id, error, entry.span))
        else:
            reply = future.result()
            if type(reply) is self._codec.reply_type:
                reply.header.id = call_id
                self._out.append(reply)
                _end_span(entry.span, "")
            else:
                fault = TypeError(f"the handler returned a {type(reply).__name__}")
                self._out.append(self._failed(call_id, fault, entry.span))
        self._writable.set()

    def _arm_timer(self, deadline: float) -> None:
        """One timer for all calls, armed for the nearest deadline; calls that end in time never touch it."""
        if self._timer is not None:
            self._timer.cancel()
        self._next_deadline = deadline
        delay = max(self._options.timer_granularity, deadline - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._next_deadline = NEVER
        now = self._clock.monotonic()
        for call_id in [call_id for call_id, entry in self._pending.items() if entry.deadline <= now]:
            entry = self._pending.pop(call_id)
            entry.future.cancel()
            _end_span(entry.span, Reason.DEADLINE_EXCEEDED.name)
            self._out.append(self._codec.failure(call_id, _EXPIRED))
        if self._out:
            self._writable.set()
        if self._pending:
            self._arm_timer(min(entry.deadline for entry in self._pending.values()))

    def _failed(self, call_id: int, error: BaseException, call_span: Span | None) -> Any:
        if isinstance(error, WeirError):
            _end_span(call_span, error.reason.name)
            return self._codec.failure(call_id, error.to_status())
        trace = "" if call_span is None else call_span.traceparent
        self._log_fault("mux_handler_failed", trace, error)
        _end_span(call_span, Reason.INTERNAL.name)
        return self._codec.failure(call_id, _INTERNAL)

    def _log_fault(self, event: str, trace: str, error: BaseException) -> None:
        """Type and place of a fault, never its text."""
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        log.error(event, trace=trace, domain=self._codec.domain, error=type(error).__name__, where=where)

    # ---- writing -------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write whatever is ready, all of it in one frame, then wait for more; ends after the last reply."""
        context, codec = self._context, self._codec
        while True:
            if self._go_away and not self._told:
                self._told = True
                await context.write(codec.go_away(self._go_away))
            elif self._out:
                await context.write(codec.replies(self._take_out()))
                self._flushed.set()
            elif self._ending and not self._pending:
                return
            else:
                await self._writable.wait()

    def _take_out(self) -> list[Any]:
        out, options = self._out, self._options
        count, size = 0, 0
        for reply in out:
            if count >= options.max_frame_items or size >= options.max_frame_bytes:
                break
            size += reply.ByteSize()
            count += 1
        taken = out[:count]
        del out[:count]
        return taken


def _end_span(call_span: Span | None, error: str) -> None:
    if call_span is not None:
        call_span.end(error)
