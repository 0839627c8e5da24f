"""A core in a process of its own: what it does to its interpreter or its memory, it does to itself alone.

The process is a fresh Python (`child.py`), not a fork: the worker's threads and sockets are none of its business. It
shares one socket pair with the worker, over which it gets its core's factory, then commands, and sends reports, one
per step. The worker itself needs none of the core's libraries.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import subprocess
from collections.abc import Callable
from typing import cast

import msgspec

from libs.children.spawning import ended, exit_of, spawn
from libs.telemetry import get_logger
from services.worker.engines.core import Command, Loaded, Report, Stop
from services.worker.engines.driven import DrivenEngine
from services.worker.engines.sync import SyncEngine
from services.worker.engines.wire import FrameReader, Log, decode_said, frame, raw_frame

log = get_logger(__name__)

_EXIT_SECONDS = 1.0  # between the end of its socket and the end of its process, and the other way round


class ProcessEngine(DrivenEngine):
    """An `Engine` around a `SyncEngine` in a process of its own.

    The process never waits for a reader of tokens. It does wait when the worker's event loop has fallen
    `max_undelivered_steps` behind what the socket holds besides.
    """

    def __init__(
        self,
        make_core: Callable[[], SyncEngine],
        *,
        max_undelivered_steps: int = 256,
        stop_grace: float = 5.0,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`make_core` is called in the process; it must be picklable, such as a `functools.partial` of a module's
        function. `stop_grace`: seconds that the core has to close before its process is killed."""
        host = ProcessHost(make_core, max_undelivered=max_undelivered_steps, stop_grace=stop_grace)
        super().__init__(host, on_failure=on_failure)
        self._process_host = host

    @property
    def pid(self) -> int | None:
        """The process's id, None before it was started."""
        return self._process_host.pid


class ProcessHost(asyncio.Protocol):
    """The worker's end: a `CoreHost`."""

    def __init__(self, make_core: Callable[[], SyncEngine], *, max_undelivered: int, stop_grace: float) -> None:
        self._make_core = make_core
        self._max_undelivered = max_undelivered
        self._stop_grace = stop_grace
        self._reader = FrameReader()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._watch: asyncio.Task[None] | None = None
        self._disconnected = asyncio.Event()
        self._killing: asyncio.TimerHandle | None = None
        self._loaded = False
        self._stopping = False
        self._garbled = ""

    @property
    def pid(self) -> int | None:
        """The process's id, None before it was started."""
        return self._process.pid if self._process is not None else None

    # ---- CoreHost --------------------------------------------------------------------------------------------------

    async def start(self, on_report: Callable[[Report], None], on_end: Callable[[str], None]) -> None:
        """See `CoreHost`."""
        self._on_report, self._on_end = on_report, on_end
        hello = pickle.dumps((self._make_core, self._max_undelivered, logging.getLogger().getEffectiveLevel()))
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        try:
            self._process = spawn("services.worker.engines.child", theirs)
        except BaseException:
            transport.close()
            raise
        finally:
            theirs.close()
        self._watch = loop.create_task(self._wait(exit_of(self._process, loop)), name="engine.process")
        transport.write(raw_frame(hello))

    def tell(self, command: Command) -> None:
        """See `CoreHost`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(command))

    def request_stop(self) -> None:
        """See `CoreHost`. A core that still loads has nothing to lose and is ended at once."""
        if self._stopping:
            return
        self._stopping = True
        if self._loaded:
            self.tell(Stop())
            self._kill_after(self._stop_grace)
        else:
            self._kill()

    async def join(self) -> None:
        """See `CoreHost`."""
        if self._watch is not None:
            await self._watch

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for message in self._reader.feed(data):
                said = decode_said(message)
                if isinstance(said, Log):
                    _write_log(said)
                    continue
                if isinstance(said, Loaded):
                    self._loaded = True
                self._on_report(said)
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("engine_process_garbled", exc_info=error)
            self._garbled = "the engine's process sent garbage"
            self._kill()
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._disconnected.set()
        if self._process is not None and self._process.returncode is None:
            self._kill_after(_EXIT_SECONDS)

    # ---- the process -----------------------------------------------------------------------------------------------

    async def _wait(self, exited: asyncio.Future[int]) -> None:
        """Until the process has ended and all that it said is read."""
        code = await exited
        if self._killing is not None:
            self._killing.cancel()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._disconnected.wait()
        except TimeoutError:  # something that it started holds the socket, or it was never connected
            pass
        if self._transport is not None:
            self._transport.close()
        self._on_end(self._garbled or f"the engine's {ended(code)}")

    def _kill_after(self, seconds: float) -> None:
        if self._killing is None:
            self._killing = asyncio.get_running_loop().call_later(seconds, self._kill)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def _write_log(said: Log) -> None:
    logger = logging.getLogger(said.logger)
    if logger.isEnabledFor(said.level):
        logger.log(said.level, "%s", said.event, extra={"fields": said.fields})
