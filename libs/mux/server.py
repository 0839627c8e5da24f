"""The answering end: reads frames, runs the handler, answers whatever is ready in one frame."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.mux.codec import Codec
from libs.mux.connection import Connection
from libs.mux.options import ServerOptions
from libs.mux.session import CallContext, Session
from libs.rpc import peer_service, require_own

__all__ = ["CallContext", "Handler", "MuxServer", "Session"]

Handler = Callable[[Any, CallContext], Any | Awaitable[Any]]
"""Takes a call item, returns the reply item, or an awaitable of it (a coroutine becomes a task)."""


class MuxServer:
    """Serves one multiplexed RPC to any number of clients.

    The servicer's method is a coroutine, not a generator (grpc.aio then reads and writes without a generator between):

        async def Session(self, request_iterator, context):
            await self._mux.serve(request_iterator, context)

    A handler that returns its reply directly is answered in the frame that answers its whole batch: use it for
    decisions in memory. It raises `WeirError` to fail its call; any other exception fails the call with INTERNAL and
    is logged without its text, which might hold a user's words. Calls of one stream start in the order they came.
    A sampled call is wrapped in a span "<domain>.<operation>", whose context the handler gets.
    """

    def __init__(
        self,
        *,
        codec: Codec,
        handler: Handler,
        instance: str,
        clock: Clock,
        max_in_flight: int | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        """`max_in_flight` overrides the option of that name."""
        base = options or ServerOptions()
        self._options = base
        self._window = base.max_in_flight if max_in_flight is None else max_in_flight
        self._codec = codec
        self._handler = handler
        self._instance = instance
        self._clock = clock
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = ""

    @property
    def sessions(self) -> int:
        """Open streams."""
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Calls whose handlers have not finished, over all streams."""
        return sum(connection.pending for connection in self._connections)

    async def serve(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """Serve one stream to its end. `request_iterator` is not used: the context reads more cheaply.

        :raises WeirError: DRAINING, INVALID_REQUEST (no Hello first), PERMISSION_DENIED (the certificate says
            otherwise).
        """
        if self._draining:
            raise WeirError(Reason.DRAINING, self._draining)
        session = await self._greet(context)
        await context.write(self._codec.welcome(self._instance, self._window))
        connection = Connection(
            context=context,
            codec=self._codec,
            handler=self._handler,
            session=session,
            clock=self._clock,
            options=self._options,
            max_in_flight=self._window,
        )
        self._connections.add(connection)
        self._empty.clear()
        if self._draining:  # it began while the client was being greeted
            connection.go_away(self._draining)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._empty.set()

    async def drain(self, reason: str = "draining") -> None:
        """Refuse new streams and new calls, let running calls finish and return when every stream has ended.

        Clients move at once and half-close when their last answer is in. Bound the wait from outside.
        """
        self._draining = reason
        for connection in self._connections:
            connection.go_away(reason)
        await self._empty.wait()

    def rebalance(
        self, reason: str = "rebalancing", *, which: Callable[[Session], bool] = lambda session: True
    ) -> None:
        """Send the open streams away, all or some, and go on: new streams are served as before.

        For servers whose shards have moved (libs.sharding): clients open their streams again at once, where their
        channel's policy says now. Running calls finish on the old stream; calls that still come on it are refused with
        DRAINING, which clients send again on the new one.
        """
        for connection in self._connections:
            if which(connection.session):
                connection.go_away(reason)

    async def _greet(self, context: grpc.aio.ServicerContext) -> Session:
        try:
            async with asyncio.timeout(self._options.hello_timeout):
                frame: Any = await context.read()
        except TimeoutError:
            raise WeirError(Reason.INVALID_REQUEST, "no Hello came", limit="hello") from None
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
            raise WeirError(Reason.INVALID_REQUEST, "the first frame must be Hello", limit="hello")
        hello = frame.hello
        require_own(context, service=hello.service, instance=hello.instance, zone=hello.zone)
        certified = peer_service(context)
        return Session(certified or hello.service, hello)
