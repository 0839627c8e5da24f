"""A minimal HTTP/1.1 client for load: one connection, one request at a time, keep-alive, server-sent events.

General clients cost several times what the mesh under test does; this one parses chunks, counts events and reads the
clock. It is an `asyncio.Protocol`, because a stream reader costs a task switch for every chunk.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

_EVENT = b"data: {"
_OVERLAP = len(_EVENT) - 1
_ERROR_EVENT = b'data: {"error"'
_DONE = b"data: [DONE]"


class ProtocolError(ConnectionError):
    """The answer is not the HTTP that this client understands."""


@dataclass(slots=True)
class Reply:
    """One answer. Times are `time.perf_counter()` seconds."""

    status: int = 0
    started: float = 0.0
    ended: float = 0.0
    head: bytes = b""
    """Status line and headers, in lower case."""
    body: bytes = b""
    """Of a streamed answer only the last two chunks, which hold the usage and the end."""
    streamed: bool = False
    events: list[float] = field(default_factory=list)
    """Arrival times of the JSON events of a stream, the usage event included."""

    def header(self, name: str) -> str:
        """A header's value in lower case; "" when it is absent."""
        _, found, rest = self.head.partition(b"\r\n" + name.encode() + b": ")
        return rest.partition(b"\r\n")[0].decode() if found else ""

    def fault(self, completion_tokens: int) -> str:
        """Why this is not a whole answer of that many tokens; "" when it is."""
        if self.status != 200:
            return f"status {self.status}: {self.body[:300]!r}"
        if self.streamed and (_ERROR_EVENT in self.body or _DONE not in self.body):
            return f"the stream ended badly: {self.body[-300:]!r}"
        if not re.search(rb'"completion_tokens": ?%d\b' % completion_tokens, self.body):
            return f"not {completion_tokens} tokens: {self.body[-600:]!r}"
        return ""


class Connection:
    """One keep-alive connection, opened at the first request and again after a loss. Not for concurrent use."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Plaintext without `tls`."""
        self._host = host
        self._port = port
        self._tls = tls
        self._protocol: _Protocol | None = None

    async def send(self, request: bytes, *, on_event: asyncio.Event | None = None, reply: Reply | None = None) -> Reply:
        """Send a whole request (see `post`) and read the answer to its end. `on_event` is set at the first event.
        `reply` is filled as the answer comes, so that what came before a failure can be told.

        :raises ConnectionError: the connection broke, or the answer cannot be parsed.
        """
        protocol = self._protocol
        if protocol is None or protocol.closed:
            loop = asyncio.get_running_loop()
            _, protocol = await loop.create_connection(_Protocol, self._host, self._port, ssl=self._tls)
            self._protocol = protocol
        return await protocol.exchange(request, on_event, reply)

    def close(self) -> None:
        """Drop the connection."""
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None


def post(host: str, path: str, key: str, body: bytes, *, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A POST request of JSON as it goes over the wire."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{more}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Protocol(asyncio.Protocol):
    """Parses one answer at a time: head, then either a body of known length or chunks."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._reply: Reply | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._on_event: asyncio.Event | None = None
        self._length = -1  # of the body; -1 while it comes in chunks
        self._carry = b""  # the last bytes of the chunk before, where an event's mark may have begun
        self._last = (b"", b"")

    async def exchange(self, request: bytes, on_event: asyncio.Event | None, reply: Reply | None = None) -> Reply:
        if self._transport is None:
            raise ConnectionError("not connected")
        self._done = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._carry, self._last = b"", (b"", b"")
        self._reply = reply if reply is not None else Reply()
        self._reply.started = time.perf_counter()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(ConnectionError(f"the connection was closed{f': {exc}' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        reply = self._reply
        if reply is None:
            self._break("an answer that nobody asked for")
            return
        try:
            if not reply.status and not self._head(reply):
                return
            if self._length < 0:
                self._chunks(reply)
            elif len(self._buffer) >= self._length:
                reply.body = self._buffer[: self._length]
                self._buffer = self._buffer[self._length :]
                self._end(reply)
        except (ValueError, IndexError) as error:
            self._break(f"malformed answer: {error}")

    def _head(self, reply: Reply) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        reply.head = head.lower() + b"\r\n"
        reply.status = int(head[9:12])
        reply.streamed = reply.header("content-type").startswith("text/event-stream")
        chunked = reply.header("transfer-encoding") == "chunked"
        self._length = -1 if chunked else int(reply.header("content-length"))
        self._buffer = rest
        return True

    def _chunks(self, reply: Reply) -> None:
        """Take every whole chunk of the buffer."""
        buffer, at = self._buffer, 0
        parts: list[bytes] = []
        ended = False
        while (eol := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:eol], 16)
            end = eol + 2 + size + 2
            if len(buffer) < end:
                break
            if buffer[end - 2 : end] != b"\r\n":
                raise ValueError("a chunk does not end where it says")
            parts.append(buffer[eol + 2 : end - 2])
            at = end
            if not size:
                ended = True
                break
        self._buffer = buffer[at:]
        if parts:
            self._take(reply, b"".join(parts))
        if ended:
            self._end(reply)

    def _take(self, reply: Reply, data: bytes) -> None:
        if not reply.streamed:
            reply.body += data
            return
        if not data:
            return
        text = self._carry + data
        self._carry = text[-_OVERLAP:]
        self._last = (self._last[1], data)
        count = text.count(_EVENT)
        if count:
            now = time.perf_counter()
            if count == 1:
                reply.events.append(now)
            else:
                reply.events.extend([now] * count)
            if self._on_event is not None:
                self._on_event.set()

    def _end(self, reply: Reply) -> None:
        reply.ended = time.perf_counter()
        if reply.streamed:
            reply.body = b"".join(self._last)
        done, self._done, self._reply = self._done, None, None
        if done is not None and not done.done():
            done.set_result(reply)

    def _break(self, message: str) -> None:
        self._fail(ProtocolError(message))
        self.close()

    def _fail(self, error: ConnectionError) -> None:
        done, self._done, self._reply = self._done, None, None
        if done is not None and not done.done():
            done.set_exception(error)
