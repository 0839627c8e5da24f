"""One streamed generation, as an async iterator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from weir.inference.v1 import inference_pb2

from libs.errors import Reason, WeirError, from_rpc_error

LOST = frozenset(
    {
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DRAINING,
        Reason.WORKER_LOST,
        Reason.PREEMPTED,
        Reason.INTERNAL,  # also what gRPC says of a stream that Envoy resets
    }
)
"""What breaks a stream that another gateway, or another worker, can go on with."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New output of one choice."""

    index: int
    text: str
    finish_reason: int
    logprobs: list[inference_pb2.TokenLogprob]


class GenerationStream:
    """Yields `Piece`s; `accepted` is set from the first frame on, `end` after the last. Use as a context manager:
    leaving it early cancels the generation.

    A stream that breaks (its gateway or the edge died, its worker was lost) is gone on with behind the last piece that
    arrived, at whatever gateway answers, and says nothing twice; `reconnects` counts that."""

    def __init__(
        self, start: Callable[[bytes], Any], pause: Callable[[int, WeirError, bool], Awaitable[bool]], *, joins: bool
    ) -> None:
        """`start(cursor)` opens the RPC and sends the first frame, which goes on behind the cursor if it is not empty;
        `pause(attempt, error, begun)` waits and says whether to retry. `joins`: the request has an idempotency key, so
        sending it again begins nothing new."""
        self._start = start
        self._pause = pause
        self._joins = joins
        self._call: Any = None
        self._cursor = b""
        self._told = False  # something of it has arrived
        self.reconnects = 0
        self.accepted: inference_pb2.Accepted | None = None
        self.end: inference_pb2.End | None = None

    async def __aenter__(self) -> Self:
        """Open, retrying until a worker was granted.

        :raises WeirError: refused, or the retries were used up.
        """
        await self._open_patiently()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._call is not None:
            self._call.cancel()  # after the end this does nothing

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """The output, piece by piece.

        :raises WeirError: the stream broke and could not be gone on with, or the generation ended with an error; what
            was yielded stands.
        """
        attempt = 0
        while self.end is None:
            failed: list[Piece] = []  # ends that another gateway may mend
            try:
                async for piece in self._pieces():
                    if piece.finish_reason == inference_pb2.FINISH_REASON_ERROR:
                        failed.append(piece)
                    else:
                        attempt = 0
                        yield piece
            except WeirError as error:
                attempt += 1
                if not self._may_go_on(error) or not await self._pause(attempt, error, True):
                    for piece in failed:
                        yield piece
                    raise
                self.reconnects += 1
                self.end = None
                attempt = await self._open_patiently(attempt)

    async def cancel(self, reason: str = "") -> None:
        """Ask for the end; the terminal frame still comes, with what was used until then. Does nothing after it."""
        # A call that has ended already tells why when it is read.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(inference_pb2.GenerateRequest(cancel=inference_pb2.Cancel(reason=reason)))

    async def _pieces(self) -> AsyncIterator[Piece]:
        """What one call brings."""
        while self.end is None:
            frame = await self._read()
            if frame.HasField("delta"):
                self._told, self._cursor = True, frame.delta.cursor
            for choice in frame.delta.choices:
                yield Piece(choice.index, choice.text, choice.finish_reason, list(choice.logprobs))
            if frame.HasField("end"):
                self.end = frame.end
                if frame.end.finish_reason == inference_pb2.FINISH_REASON_ERROR:
                    raise WeirError(Reason.parse(frame.end.error_reason), frame.end.message)

    def _may_go_on(self, error: WeirError) -> bool:
        """What broke it says nothing about the request, and it can be gone on with exactly, or joined."""
        known = bool(self._cursor) if self._told else self._joins
        return known and error.reason in LOST

    async def _open_patiently(self, attempt: int = 0) -> int:
        """Open, retrying; the tries in vain so far, `attempt` before it.

        :raises WeirError: refused, or the retries were used up.
        """
        while True:
            try:
                await self._open()
            except WeirError as error:
                attempt += 1
                if not await self._pause(attempt, error, self.reconnects > 0):
                    raise
            else:
                return attempt

    async def _open(self) -> None:
        self._call = await self._start(self._cursor)
        try:
            frame = await self._read()
            if not frame.HasField("accepted"):
                raise WeirError(Reason.INTERNAL, "the server did not begin with an accepted frame")
        except BaseException:  # nobody will leave a block that was never entered
            self._call.cancel()
            raise
        self.accepted = frame.accepted

    async def _read(self) -> inference_pb2.GenerateResponse:
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if frame is grpc.aio.EOF:
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                status = grpc.aio.AioRpcError(
                    code,
                    await self._call.initial_metadata(),
                    await self._call.trailing_metadata(),
                    await self._call.details(),
                )
                raise from_rpc_error(status)
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the stream ended without a terminal frame")
        return frame
