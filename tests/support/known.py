"""What tests of the edge's memory share: how often somebody was asked, and the push of a revocation."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Iterable, Iterator

import grpc
import httpx2
import pytest
from google.api import httpbody_pb2

from libs.registry import Put, keys
from services.controlplane.policy import filters
from tests.support.fixtures.edge_fixtures import Edge
from tests.support.upstreams import json_body

CHAT = "/v1/chat/completions"
PATIENT = {"FRESH": 60_000, "STALE": 120_000, "AGAIN": 60_000, "REFUSED": 60_000}
"""Times that no busy machine exceeds."""
_DELIVERED = filters._LUA
LATEST = 10**6
"""A revision after all of a test's."""


@contextlib.contextmanager
def edge_lua(more: str = "", **constants: int) -> Iterator[None]:
    """`edge.lua` for the edges that run in this block, with other constants.

    :param more: Lua that comes behind it.
    """
    source = _DELIVERED
    for name, value in constants.items():
        source, times = re.subn(rf"(?m)^(local {name} =) \d+", rf"\1 {value}", source)
        assert times == 1, name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_LUA", source + more)
        yield


class Asked:
    """How often edge-auth and the limiter were asked since this was made."""

    def __init__(self, edge: Edge) -> None:
        self._upstreams = edge.upstreams
        self._auth, self._limiter = self._now()

    def _now(self) -> tuple[int, int]:
        return len(self._upstreams.auth.seen), len(self._upstreams.ratelimit.seen)

    @property
    def of(self) -> tuple[int, int]:
        """Of who it is, and of his limits."""
        auth, limiter = self._now()
        return auth - self._auth, limiter - self._limiter


def new_key(edge: Edge) -> dict[str, str]:
    """The header of a good key that nobody has shown before."""
    shown = f"Bearer {secrets.token_hex(8)}"
    edge.upstreams.auth.good.add(shown)
    return {"authorization": shown}


def client(edge: Edge, source: str = "127.0.0.1", **headers: str) -> httpx2.AsyncClient:
    """An HTTP/1.1 client of the plain listener that comes from this address."""
    transport = httpx2.AsyncHTTPTransport(local_address=source)
    return httpx2.AsyncClient(base_url=edge.url, headers=headers, transport=transport, trust_env=False, timeout=20)


def held_up(edge: Edge) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on the gateway answers late: the first says that it was asked, and by the second it goes on."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(
        request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        began.set()
        await go_on.wait()
        yield json_body("{}")

    edge.upstreams.gateway.chat = slow
    return began, go_on


async def pushed(edge: Edge) -> int:
    """A credential is revoked in the registry, and Envoy knows that; the revision."""
    before = await _reloads(edge)
    result = await edge.plane.store.txn(puts=[Put(keys.EPOCH, secrets.token_bytes(4))])
    async with asyncio.timeout(10):
        while await _reloads(edge) <= before:
            pass  # each look is a round trip to Envoy
    return result.revision


async def _reloads(edge: Edge) -> int:
    return sum((await edge.envoy.counters("weir.epoch.config_reload$")).values())


async def over_http2(
    edge: Edge, headers: Iterable[tuple[str, str]], body: bytes = b"{}", *, withheld: bool = False
) -> bool:
    """Whether a POST over HTTP/2 and TLS is answered with 200. Headers may occur twice, which clients do not offer.

    :param withheld: the body is announced and never sent.
    """
    tls = ssl.create_default_context(cafile=str(edge.ca))
    tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.https_port, ssl=tls, server_hostname="localhost")
    try:
        pseudo = ((":method", "POST"), (":scheme", "https"), (":authority", "edge"), (":path", CHAT))
        block = b"".join(_literal(*pair) for pair in (*pseudo, *headers, ("content-length", str(len(body)))))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0))
        writer.write(_frame(1, 4, 1, block) + (b"" if withheld else _frame(0, 1, 1, body)))
        async with asyncio.timeout(20):
            while True:
                head = await reader.readexactly(9)
                length, kind = int.from_bytes(head[:3], "big"), head[3]
                content = await reader.readexactly(length)
                if kind == 1:
                    # RFC 7541: ":status: 200" is entry 8 of the static table, and no other status begins so.
                    return content.lstrip(b"\x20\x3f\xe1\x1f")[:1] == b"\x88"
    finally:
        writer.close()


def _literal(name: str, value: str) -> bytes:
    """RFC 7541, section 6.2.2: without indexing, a new name; lengths below 127."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content
