"""A TCP proxy that can stop forwarding: a network that drops everything, with both ends none the wiser."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections to one address. While blocked, connections open and nothing comes through, either way."""

    def __init__(self, target: str) -> None:
        """:param target: "host:port"."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._passing = asyncio.Event()
        self._passing.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.address = ""

    def block(self) -> None:
        """Stop forwarding, open connections included."""
        self._passing.clear()

    def heal(self) -> None:
        """Forward again, with what was held up first."""
        self._passing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        try:
            onward = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, onward[1]))
                group.create_task(self._pump(onward[0], writer))
        except* (OSError, asyncio.CancelledError):
            pass  # asyncio's stream callback takes a cancelled task for a fault
        finally:
            writer.close()
            onward[1].close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._passing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
