"""Gateway streams: submissions and cancels in, one frame per engine step out."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from libs.mux.pacer import Pacer
from libs.rpc import require_own
from libs.telemetry import get_logger
from services.worker import metrics
from services.worker.convert import refusals_frame, step_frame
from services.worker.hub import Hub, Mailbox
from services.worker.intake import Intake

log = get_logger(__name__)

_LONGEST_HOLD = 0.002  # seconds; steps that come faster than this travel together
_HELLO_TIMEOUT = 10.0  # seconds from opening a stream to its Hello


class GatewaySession:
    """One stream, from Hello to its end. Whatever ends it cancels the sequences that still run on it."""

    def __init__(self, context: grpc.aio.ServicerContext, *, hub: Hub, intake: Intake, welcome: Any) -> None:
        self._context: Any = context
        self._hub = hub
        self._intake = intake
        self._welcome = welcome
        self._mailbox = Mailbox(on_overrun=self._on_overrun)
        self._go_away = ""
        self._ending = False
        # Ends the stream even while the writer is stuck on a reader that does not read.
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_away(self, reason: str) -> None:
        """Tell the gateway that nothing new is taken; what runs goes on."""
        self._go_away = reason
        self._mailbox.wake.set()

    def finish(self) -> None:
        """End the stream once its sequences have ended and everything is written."""
        self._ending = True
        self._mailbox.wake.set()

    def cut(self, error: WeirError) -> None:
        """End the stream with an error: the gateway continues its sequences elsewhere."""
        if not self._broken.done():
            self._broken.set_exception(error)

    def _on_overrun(self) -> None:
        metrics.SLOW_READERS.inc()
        self.cut(WeirError(Reason.REJECTED_QUEUE_FULL, "the stream is not read", limit="max_unread_tokens"))

    async def run(self) -> None:
        """Serve the stream.

        :raises WeirError: INVALID_REQUEST (no Hello first, an unknown frame), PERMISSION_DENIED (a Hello of somebody
            else than the certificate's), REJECTED_QUEUE_FULL (the gateway does
            not read), or what `cut` was given.
        """
        await self._greet()
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        metrics.SESSIONS.inc()
        try:
            waited: set[asyncio.Future[None]] = {reader, writer, self._broken}
            while writer in waited:
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()
        finally:
            metrics.SESSIONS.dec()
            self._hub.close(self._mailbox)
            for future in (reader, writer, self._broken):
                future.cancel()
            await asyncio.gather(reader, writer, self._broken, return_exceptions=True)

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                frame = await self._context.read()
        except TimeoutError:
            raise WeirError(Reason.INVALID_REQUEST, "no Hello came", limit="hello") from None
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
            raise WeirError(Reason.INVALID_REQUEST, "the first frame must be Hello", limit="hello")
        hello = frame.hello
        require_own(self._context, service=hello.service, instance=hello.instance, zone=hello.zone)
        log.info("session_opened", gateway=hello.instance)
        await self._context.write(worker_pb2.SessionResponse(welcome=self._welcome))

    async def _read(self) -> None:
        """Take frames until the gateway half-closes: then it only waits for what runs."""
        context, mailbox = self._context, self._mailbox
        while (frame := await context.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "submissions":
                refused = self._intake.submit(mailbox, frame.submissions.items)
                if refused:
                    mailbox.refuse(refused)
            elif kind == "cancel":
                self._hub.cancel(mailbox, frame.cancel.handles)
            else:
                raise WeirError(Reason.INVALID_REQUEST, "unexpected frame", limit=kind or "frame")
        self.finish()

    async def _write(self) -> None:
        """Write what is ready. While a write waits for a slow reader, later steps are merged in the outbox."""
        context, mailbox = self._context, self._mailbox
        pacer = Pacer(longest=_LONGEST_HOLD)
        told = False
        while True:
            if self._go_away and not told:
                told = True
                await context.write(worker_pb2.SessionResponse(go_away=mux_pb2.GoAway(reason=self._go_away)))
            elif mailbox.refused:
                # What a sequence that is handed back produced before goes first: its gateway goes on after that.
                refused, batch = mailbox.take_refused(), mailbox.outbox.take()
                if not batch.empty:
                    await context.write(step_frame(batch))
                await context.write(refusals_frame(refused))
            elif not mailbox.outbox.batch.empty:
                now = self._hub.clock.monotonic()
                # A first token never waits.
                if not mailbox.outbox.batch.first and (hold := pacer.hold(now)) > 0:
                    await asyncio.sleep(hold)
                    now = self._hub.clock.monotonic()
                batch = mailbox.outbox.take()
                pacer.wrote(batch.steps, now)
                await context.write(step_frame(batch))
            elif self._ending and not mailbox.handles:
                return
            else:
                await mailbox.wake.wait()
