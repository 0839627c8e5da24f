"""One open stream of the client, and why a task on it was cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from libs.mux.core import Stream
from libs.mux.wake import Wake


class Link:
    """One open stream and what its writer waits for."""

    __slots__ = ("retired", "rpc", "stream", "wake")

    def __init__(self, rpc: Any, stream: Stream[Any]) -> None:
        self.rpc = rpc
        self.stream = stream
        self.wake = Wake()
        self.retired = asyncio.Event()


def cancelled_by_owner() -> bool:
    """Whether this task was asked to stop; otherwise the cancellation came out of a dead RPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
