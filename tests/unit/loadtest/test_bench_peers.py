"""What stands behind the peers, and what is said of them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from loadtest.http_client import post
from loadtest.peers import contenders, upstream
from loadtest.scenarios import Edge, EdgeSender, requests_closed_loop

WHOLE = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"


@pytest.mark.parametrize("request_", [WHOLE, CHUNKED, post("host", "/", "key", b"{}", headers=[("x-more", "1")])])
def test_a_request_is_taken_when_it_is_whole_and_what_follows_is_left(request_: bytes) -> None:
    assert all(upstream.take(request_[:length]) is None for length in range(len(request_)))
    assert upstream.take(request_ + b"POST") == (b"{}", b"POST")


async def test_the_load_finds_whole_answers_there() -> None:
    server = await asyncio.get_running_loop().create_server(upstream.Upstream, "127.0.0.1", 0)
    async with server:
        edge = Edge("127.0.0.1", server.sockets[0].getsockname()[1], ("key",), {"self": os.getpid()}, (), model="peer")
        cost = await requests_closed_loop(edge, connections=4, seconds=0.1, max_tokens=3)
        sender = EdgeSender(edge, max_tokens=4)
        reply = await sender.reply()
        sender.close()
    assert cost.units > 0
    assert not reply.fault(4)
    assert len(reply.events) == 4 + 2  # the end and the usage


def test_what_is_not_installed_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS_ENV", str(tmp_path))
    assert {name: bool(contenders.version(name)) for name in contenders.CONTENDERS} == {
        "upstream": True,
        "envoy": True,
        "litellm": False,
        "portkey": False,
    }


def test_the_locks_name_what_is_written_about_them() -> None:
    folder = Path(contenders.__file__).parent
    package = json.loads((folder / "portkey" / "package.json").read_text())
    locked = json.loads((folder / "portkey" / "package-lock.json").read_text())["packages"]
    assert locked["node_modules/@portkey-ai/gateway"]["version"] == package["dependencies"]["@portkey-ai/gateway"]
    assert not any("resolved" in each for each in locked.values())  # a place of whoever wrote the lock
    assert "\nlitellm==1.106.2 \\\n" in (folder / "litellm.lock").read_text()
