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


@dataclass(frozen=True, slots=True)
class Piece:
    """New output of one choice."""

    index: int
    text: str
    finish_reason: int
    logprobs: list[inference_pb2.TokenLogprob]


class GenerationStream:
    """Yields `Piece`s; `accepted` is set from the first frame on, `end` after the last. Use as a context manager:
    leaving it early cancels the generation."""

    def __init__(self, start: Callable[[], Any], pause: Callable[[int, WeirError], Awaitable[bool]]) -> None:
        """`start` opens the RPC and sends the first frame; `pause(attempt, error)` waits and says whether to retry."""
        self._start = start
        self._pause = pause
        self._call: Any = None
        self.accepted: inference_pb2.Accepted | None = None
        self.end: inference_pb2.End | None = None

    async def __aenter__(self) -> Self:
        """Open, retrying until a worker was granted.

        :raises WeirError: refused, or the retries were used up.
        """
        attempt = 0
        while True:
            try:
                await self._open()
            except WeirError as error:
                attempt += 1
                if not await self._pause(attempt, error):
                    raise
            else:
                return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._call is not None:
            self._call.cancel()  # after the end this does nothing

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """The output, piece by piece.

        :raises WeirError: the stream broke, or the generation ended with an error; what was yielded stands.
        """
        while self.end is None:
            frame = await self._read()
            for choice in frame.delta.choices:
                yield Piece(choice.index, choice.text, choice.finish_reason, list(choice.logprobs))
            if frame.HasField("end"):
                self.end = frame.end
        if self.end.finish_reason == inference_pb2.FINISH_REASON_ERROR:
            raise WeirError(Reason.parse(self.end.error_reason), self.end.message)

    async def cancel(self, reason: str = "") -> None:
        """Ask for the end; the terminal frame still comes, with what was used until then. Does nothing after it."""
        # A call that has ended already tells why when it is read.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(inference_pb2.GenerateRequest(cancel=inference_pb2.Cancel(reason=reason)))

    async def _open(self) -> None:
        self._call = await self._start()
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
