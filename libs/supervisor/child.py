"""One running child process: its own session, its output, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from libs.supervisor.forks import Fork
from libs.supervisor.leash import leashed
from libs.supervisor.logs import LineSplitter
from libs.supervisor.spec import ProcessSpec

_OUTPUT_GRACE = 1.0


class _Output(asyncio.Protocol):
    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._splitter = LineSplitter(on_line)
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._splitter.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._splitter.close()
        if not self.closed.done():
            self.closed.set_result(None)


class Begun:
    """A process that runs already, whose output nobody reads yet."""

    def __init__(self, spec: ProcessSpec) -> None:
        """A program that does not exist shows as exit code 127. Raises OSError when no process can be made at all."""
        self.output, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own argument list; fork and exec take a millisecond
                leashed(*spec.argv),  # nothing survives a killed supervisor
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=spec.cwd or None,
                env={**os.environ, **spec.env},
                start_new_session=True,
            )
        except OSError:
            os.close(self.output)
            raise
        finally:
            os.close(write_end)
        self.pid = self._process.pid

    def let_go(self) -> None:
        """Nothing: it was never held."""

    def wait(self) -> int:
        """Waits for its end. Returns the exit code, negative for a signal."""
        return self._process.wait()

    def discard(self) -> None:
        """Ends it."""
        self._process.kill()
        self.wait()
        os.close(self.output)


class Child:
    """A started process. Made by `spawn`; ends by itself or by `stop`."""

    def __init__(self, process: Begun | Fork, output: _Output, transport: asyncio.ReadTransport, grace: float) -> None:
        self.pid = process.pid
        self._process = process
        self._output = output
        self._transport = transport
        self._grace = grace
        self._code = 0
        self._pidfd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        # Not reaped yet, so its process group id cannot have been given to anybody else: what it left behind goes now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._code = self._process.wait()
        os.close(self._pidfd)
        self._exited.set_result(None)

    async def wait(self) -> int:
        """Waits for the end and its last output. Returns the exit code, negative for a signal. May be called often."""
        await asyncio.shield(self._exited)
        # A descendant that moved to another session may hold the pipe open; do not wait for it for ever.
        await asyncio.wait((self._output.closed,), timeout=_OUTPUT_GRACE)
        self._transport.close()
        return self._code

    def signal(self, number: int) -> None:
        """Sends a signal to the process itself; nothing happens when it has ended."""
        if not self._exited.done():
            signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self) -> int:
        """SIGTERM, the grace of its specification, then SIGKILL to its whole group. Returns the exit code."""
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait((self._exited,), timeout=self._grace)
        if not done:
            self.kill()
        return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        if not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def spawn(spec: ProcessSpec, on_line: Callable[[bytes], None], early: Begun | Fork | None = None) -> Child:
    """Starts a process, or takes over one that was made before; `on_line` gets its output lines, standard error
    included. Raises OSError as `Begun` does."""
    process = early or Begun(spec)
    process.let_go()
    reader = os.fdopen(process.output, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    transport, output = await loop.connect_read_pipe(lambda: _Output(on_line), reader)
    return Child(process, output, transport, spec.stop_grace)
