"""Control of a running supervisor over a Unix socket: one JSON object per line, in and out.

Requests: {"op": "status"}, {"op": "watch"} (a status per change), {"op": "stop"} (answered when all has stopped),
{"op": "restart", "name": …}, {"op": "kill", "name": …, "signal": "KILL"}. An answer with "error" failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from libs.near import near
from libs.supervisor.supervisor import FINAL_STATES, Supervisor, UnknownProcess

SOCKET = "supervisor.sock"


class NotRunning(Exception):
    """No supervisor answers in this state directory."""


class CommandError(Exception):
    """The supervisor refused a command; the message says why."""


@contextmanager
def _short_path(state_dir: Path) -> Iterator[str]:
    """A path of the socket below the 108 bytes that an AF_UNIX address may have, however deep the folder is."""
    descriptor = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


class ControlServer:
    """Serves one supervisor's socket. The caller holds the state directory's lock, so an old socket is a dead one."""

    def __init__(self, supervisor: Supervisor, state_dir: Path) -> None:
        self._supervisor = supervisor
        self._path = state_dir / SOCKET
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begins to listen; the socket is for this user only."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before it has a name: a mode that comes after `bind` comes too late for whoever connects in between. On Linux
        # the name gets the descriptor's mode (unix(7), under "Pathname socket ownership and permissions").
        os.fchmod(listener.fileno(), 0o600)
        with _short_path(self._path.parent) as path:
            listener.bind(path)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def close(self) -> None:
        """Stops listening, gives open answers a second to be written, removes the socket."""
        if self._server is not None:
            self._server.close()
        if self._running:
            await asyncio.wait(self._running, timeout=1.0)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("connections are served in tasks")
        self._running.add(task)
        try:
            with suppress(ConnectionError):
                await self._answer(await reader.readline(), writer)
        finally:
            self._running.discard(task)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(line)
            async for status in self._handle(request):
                await _send(writer, status)
        except UnknownProcess as error:
            known = [each["name"] for each in self._supervisor.status()["processes"]]
            meant = near(str(error.args[0]), known, tell=True)
            await _send(writer, {"error": f"no process {error.args[0]!r}{meant}"})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            await _send(writer, {"error": f"bad request: {error}"})

    async def _handle(self, request: dict[str, Any]) -> Any:
        supervisor = self._supervisor
        match request["op"]:
            case "status":
                yield supervisor.status()
            case "watch":
                async for status in supervisor.watch():
                    yield status
            case "stop":
                supervisor.stop()
                async for status in supervisor.watch():
                    if status["state"] in FINAL_STATES:
                        yield status
            case "restart":
                await supervisor.restart(request["name"])
                yield supervisor.status()
            case "kill":
                supervisor.kill(request["name"], signal.Signals[f"SIG{request.get('signal', 'KILL')}"])
                yield supervisor.status()
            case other:
                yield {"error": f"unknown operation {other!r}"}


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


def stream(state_dir: Path | str, operation: str, *, timeout: float | None = None, **fields: Any) -> Iterator[Any]:
    """Sends a command and yields its answers, one dict per line.

    `timeout` is seconds to wait for each answer. Raises NotRunning when nobody listens, CommandError for a refusal,
    TimeoutError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            with _short_path(Path(state_dir)) as path:
                connection.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise NotRunning(f"no mesh runs in {state_dir}") from None
        with connection.makefile("rb") as lines:
            try:
                connection.sendall(json.dumps({"op": operation, **fields}).encode() + b"\n")
                for line in lines:
                    answer = json.loads(line)
                    if "error" in answer:
                        raise CommandError(answer["error"])
                    yield answer
            except ConnectionError:  # it died while it was asked
                raise NotRunning(f"the mesh in {state_dir} ended before it answered") from None


def request(state_dir: Path | str, operation: str, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
    """Sends a command and returns its last answer; see `stream`. Raises NotRunning also when the answer never came."""
    answers = list(stream(state_dir, operation, timeout=timeout, **fields))
    if not answers:
        raise NotRunning(f"the mesh in {state_dir} ended before it answered")
    return answers[-1]


def restart(state_dir: Path | str, name: str, *, timeout: float | None = None) -> dict[str, Any]:
    """Stops a process with grace, starts it again and waits: its row of the status, once it is ready or ended again.

    :param timeout: seconds for it to stop; how long it takes to be ready is its own matter. Raises as `request`.
    """

    def row(status: dict[str, Any]) -> dict[str, Any]:
        return next((each for each in status["processes"] if each["name"] == name), {"pid": None, "restarts": 0})

    before = row(request(state_dir, "status", timeout=timeout))
    request(state_dir, "restart", timeout=timeout, name=name)
    for current in map(row, stream(state_dir, "watch")):
        if current["restarts"] > before["restarts"] + 1 or (current["ready"] and current["pid"] != before["pid"]):
            return current
    raise NotRunning(f"the mesh in {state_dir} ended before {name} was ready")
