"""One open stream of the client: its first words, whether its peer still answers, why a task on it was cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from libs.mux.core import Semantics, Stream
from libs.mux.wake import Wake

_ASK, _LOST = 2, 6
"""Ticks without a frame after which the peer is asked whether it is there, and after which it is not."""


class Link:
    """One open stream and what its writer waits for.

    A peer that stands still (stopped, or stuck in one turn of its loop) keeps its connection open. So while answers
    are awaited and nothing comes, it is asked whether it is there; a stream that stays silent is cancelled, and what it
    had in flight is lost at once and not when gRPC's keepalive notices. Silence is counted in turns of this side's own
    loop: its own standstill is no silence of the peer's.
    """

    __slots__ = ("_on_silent", "_quiet", "_tick", "_timer", "asks", "retired", "rpc", "silent", "stream", "wake")

    def __init__(
        self, rpc: Any, stream: Stream[Any], *, silence: float, on_silent: Callable[[], None] | None = None
    ) -> None:
        """`silence` in seconds, from the last frame to the end; `on_silent` is called then."""
        self.rpc = rpc
        self.stream = stream
        self.wake = Wake()
        self.retired = asyncio.Event()
        self.asks = False
        """The writer is to ask."""
        self.silent = False
        """It was given up."""
        self._on_silent = on_silent
        self._tick = silence / _LOST
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """A frame came."""
        self._quiet = 0

    def watch(self) -> None:
        """Calls were written."""
        if self._timer is None:
            self._quiet = 0
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def close(self) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if all(call.semantics is Semantics.WATCH for call in self.stream.in_flight.values()):
            return
        self._quiet += 1
        if self._quiet >= _LOST:
            self.silent = True
            self.rpc.cancel()
            if self._on_silent is not None:
                self._on_silent()
            return
        if self._quiet == _ASK:
            self.asks = True
            self.wake.set()
        self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)


async def greet(rpc: Any, hello: Any) -> Any:
    """Say Hello; returns the first answer. A stream that has ended already, as one that is refused may have, tells why
    when it is read, and not when it is written on."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await rpc.write(hello)
    return await rpc.read()


def cancelled_by_owner() -> bool:
    """Whether this task was asked to stop; otherwise the cancellation came out of a dead RPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
