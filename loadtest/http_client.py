"""A minimal HTTP/1.1 client for load: one connection, one request at a time, keep-alive, server-sent events.

General clients cost several times what the mesh under test does; this one counts events and reads the clock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reply:
    """One answer. Times are `time.perf_counter()` seconds; `events` are the arrival times of SSE data events."""

    status: int = 0
    started: float = 0.0
    first_byte: float = 0.0
    ended: float = 0.0
    events: list[float] = field(default_factory=list)
    body: bytes = b""


class Connection:
    """One keep-alive connection. Not for concurrent use."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host = host
        self._port = port
        self._key = key
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        """Drop the connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def post(self, path: str, body: bytes, *, on_event: asyncio.Event | None = None) -> Reply:
        """Send and read to the end. `on_event` is set at the first event."""
        if self._reader is None or self._writer is None:
            await self.open()
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise ConnectionError("not connected")
        reply = Reply(started=time.perf_counter())
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        header = await reader.readuntil(b"\r\n\r\n")
        reply.first_byte = time.perf_counter()
        reply.status = int(header[9:12])
        lowered = header.lower()
        if b"transfer-encoding: chunked" in lowered:
            await self._chunks(reader, reply, on_event)
        else:
            length = int(lowered.split(b"content-length: ")[1].split(b"\r\n")[0])
            reply.body = await reader.readexactly(length)
        reply.ended = time.perf_counter()
        return reply

    async def _chunks(self, reader: asyncio.StreamReader, reply: Reply, on_event: asyncio.Event | None) -> None:
        parts: list[bytes] = []
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            data = await reader.readexactly(size + 2)
            if not size:
                break
            now = time.perf_counter()
            count = data.count(b"data: {")
            if count:
                reply.events.extend([now] * count)
                if on_event is not None:
                    on_event.set()
            else:
                parts.append(data[:-2])
        reply.body = b"".join(parts)
