"""The process that sends for locust: what it asks of an edge, what it gives up, and that it ends with its input."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadtest.locust.child import Child
from loadtest.locust.messages import CHAT, Ask, Effort, Told
from loadtest.locust.settings import Settings
from tests.support.mesh import ROOT

STREAM = (
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-weir-model-version: m@1\r\n"


class Edge:
    """Answers every request with one token, or with nothing while `hangs`."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[dict[str, object]] = []
        self.hangs = False
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(json.loads(await reader.readexactly(length)))
                self.asked.set()
                if self.hangs:
                    continue
                chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM), STREAM)
                writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk)
                await writer.drain()
        except asyncio.IncompleteReadError:
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def edge() -> AsyncIterator[Edge]:
    made = Edge()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server, asyncio.timeout(20):
        made.port = server.sockets[0].getsockname()[1]
        yield made


def settings(port: int) -> Settings:
    keys = {"acme": "wk_a", "globex": "wk_b"}
    return Settings(edge=f"http://127.0.0.1:{port}", ca="", keys=keys, model="m")


def chat(number: int, *, key: int = 0) -> Ask:
    return Ask(id=number, do=CHAT, key=key, user="user-7", prompt_tokens=5, output_tokens=3)


async def test_a_chat_is_asked_for_with_its_lengths_key_and_user() -> None:
    told: asyncio.Queue[Told] = asyncio.Queue()
    async with edge() as at:
        child = Child(settings(at.port), told.put_nowait)
        child.take(chat(1, key=3))
        answer = await told.get()
        await child.close()
    assert at.heads[0].startswith(b"POST /v1/chat/completions ")
    assert b"authorization: Bearer wk_b\r\n" in at.heads[0], "keys are taken in turn"
    body = at.bodies[0]
    assert (body["model"], body["max_tokens"], body["user"], body["stream"]) == ("m", 3, "user-7", True)
    (message,) = body["messages"]  # type: ignore[misc]
    assert len(message["content"].split()) == 5  # type: ignore[index]
    assert (answer.id, answer.outcome, answer.tokens, answer.version) == (1, "ok", 3, "m@1")
    assert len(answer.events) == 1
    assert 0.0 < answer.events[0] <= answer.seconds
    assert child.events == 1


@pytest.mark.parametrize("how", ["leave", "close"])
async def test_what_is_given_up_is_given_up_at_the_edge(how: str) -> None:
    async with edge() as at:
        at.hangs = True
        told: list[Told] = []
        child = Child(settings(at.port), told.append)
        child.take(chat(1))
        await at.asked.wait()
        if how == "leave":
            child.take(Ask(id=1, do="leave"))
            child.take(Ask(id=2, do="leave"))  # of one that has ended
        else:
            await child.close()
        await at.left.wait()
        await child.close()
    assert told == []


async def test_the_process_answers_and_ends_with_its_input_whatever_signals_it_gets() -> None:
    async with edge() as at:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.locust.child"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (settings(at.port), chat(4)):
            process.stdin.write(msgspec.json.encode(message) + b"\n")
        assert msgspec.json.decode(await process.stdout.readline(), type=Told).tokens == 3
        # As the whole group gets it from a terminal: locust decides when it is over.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.stdin.write(msgspec.json.encode(chat(5)) + b"\n")
        assert msgspec.json.decode(await process.stdout.readline(), type=Told).id == 5
        process.stdin.close()
        effort = msgspec.json.decode(await process.stdout.readline(), type=Effort)
        assert await process.wait() == 0
    assert effort.events == 2
    assert 0.0 < effort.cpu_seconds < 5.0
