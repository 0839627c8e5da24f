"""What the peers of `make bench-peers` pass requests on to: an engine without cost behind OpenAI's API, in clear.

    python -m loadtest.peers.upstream PORT

Every answer has `max_tokens` tokens; a stream has an event for each, the first at once and the others in the loop's
next turns, as the simulated engine of the mesh gives them; those of the model PACED at its pace, one each 20 ms.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"
PACED, INTERVAL = "peer-paced", 0.02
_COMMON = {"id": "chatcmpl-0", "created": 1700000000, "model": "peer"}


class Upstream(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (found := take(self._buffer)) is not None:
            body, self._buffer = found
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        asked = json.loads(body) if body else {}
        count = asked.get("max_tokens", 1)
        if not asked.get("stream"):
            whole = completion(count)
            self._transport.write(_HEAD % (len(whole), whole))
            return
        self._transport.write(_STREAM)
        now = asyncio.get_running_loop().time()
        self._next(count, 0, now, INTERVAL if asked.get("model") == PACED else 0.0)

    def _next(self, count: int, made: int, due: float, interval: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(chunk(token(made)))
        if made + 1 < count:
            due += interval
            asyncio.get_running_loop().call_at(due, self._next, count, made + 1, due, interval)
        else:
            self._transport.write(chunk(final(count)) + _END)


def take(buffer: bytes) -> tuple[bytes, bytes] | None:
    """The body of the first request and what follows it; None while it is not whole. Pure."""
    head, found, rest = buffer.partition(b"\r\n\r\n")
    if not found:
        return None
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if fields.get(b"transfer-encoding") != b"chunked":
        length = int(fields.get(b"content-length", 0))
        return (rest[:length], rest[length:]) if len(rest) >= length else None
    body = b""
    while True:
        size, found, rest = rest.partition(b"\r\n")
        length = int(size, 16) if found else 0
        if not found or len(rest) < length + 2:
            return None
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, rest


def completion(count: int) -> bytes:
    """A whole answer."""
    message = {"role": "assistant", "content": " word" * count}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    return _json({**_COMMON, "object": "chat.completion", "choices": [choice], "usage": _usage(count)})


def token(number: int) -> bytes:
    """The event of one token."""
    # Not the same each time: LiteLLM ends a stream that says one thing a hundred times.
    delta = {"content": (" word", " weir")[number % 2], **({} if number else {"role": "assistant"})}
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])


def final(count: int) -> bytes:
    """The events behind the last token."""
    stop = _event([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}])
    return stop + _event([], usage=_usage(count)) + b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """As HTTP sends a part of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(choices: list[Any], **more: Any) -> bytes:
    return b"data: %s\n\n" % _json({**_COMMON, "object": "chat.completion.chunk", "choices": choices, **more})


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 50, "completion_tokens": count, "total_tokens": count + 50}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def main(port: int) -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
