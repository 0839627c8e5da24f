"""`weir certs`: a running mesh's certificates and CA are replaced while it answers, and no request notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx2 as httpx
import pytest
from weir.client import Client, Parameters, Tls

from libs.config import TlsFiles
from libs.rpc import make_channel
from tests.support.mesh import Mesh

SENDERS = 3


@dataclass
class Load:
    """What became of the requests that were sent meanwhile."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)

    async def past(self, count: int) -> None:
        """Returns when so many more have been answered."""
        wanted = self.answered + count
        async with asyncio.timeout(120):
            while self.answered < wanted and not self.failed:  # noqa: ASYNC110 - told by several senders
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def under_load(mesh: Mesh) -> AsyncIterator[Load]:
    """Streams over the public edge, a connection each, and over the mesh's own `xds:///` with mTLS, all the time."""
    load, stop = Load(), asyncio.Event()

    async def over_https(number: int) -> None:
        body = {
            "model": "weir-fast",
            "stream": True,
            "max_tokens": 12,
            "messages": [{"role": "user", "content": f"Tell me about river {number}."}],
        }
        headers = {"authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}"}
        context = ssl.create_default_context(cafile=mesh.env["WEIR_CA"])
        async with (
            httpx.AsyncClient(verify=context, timeout=60) as client,
            client.stream(
                "POST", f"{mesh.env['WEIR_EDGE_TLS_URL']}/v1/chat/completions", json=body, headers=headers
            ) as answer,
        ):
            lines = [line async for line in answer.aiter_lines()]
            assert answer.status_code == 200, lines
            assert "data: [DONE]" in lines, lines[-3:]

    async def over_xds(client: Client) -> None:
        async with client.generate(
            "weir-fast", "The river", parameters=Parameters(max_tokens=12), timeout=60
        ) as stream:
            assert [piece async for piece in stream]
        assert stream.end is not None

    async def send(number: int, client: Client) -> None:
        while not stop.is_set():
            try:
                await (over_https(number) if number % 2 else over_xds(client))
            except Exception as error:  # every failure is the finding
                load.failed.append(repr(error))
                return
            load.answered += 1

    tls = Tls(ca=mesh.env["WEIR_CA"], cert=mesh.env["WEIR_CLIENT_CERT"], key=mesh.env["WEIR_CLIENT_KEY"])
    async with Client("xds:///gateway.weir.internal", tls=tls) as client, asyncio.TaskGroup() as group:
        for number in range(SENDERS):
            group.create_task(send(number, client))
        try:
            yield load
        finally:
            stop.set()


async def weir(mesh: Mesh, *words: str) -> str:
    done = await asyncio.to_thread(mesh.weir, *words, seconds=120)
    return str(done.stdout)


async def serials(mesh: Mesh) -> dict[str, str]:
    rows = json.loads(await weir(mesh, "certs", "show", "--json"))["certificates"]
    assert {row["name"] for row in rows if row["shown"] is False} == set()
    return {row["name"]: row["serial"] for row in rows}


@pytest.mark.parametrize("ca", [False, True], ids=["leaves", "ca"])
async def test_certificates_are_replaced_under_load_without_a_failed_request(
    mesh: Mesh, tmp_path: Path, ca: bool
) -> None:
    before = await serials(mesh)
    former = {part: tmp_path / part for part in ("ca.pem", "demo-client.pem", "demo-client.key")}
    for name, copy in former.items():
        shutil.copy(mesh.state / "pki" / name, copy)
    async with under_load(mesh) as load:
        await load.past(5)
        await weir(mesh, "certs", "rotate", *(["--ca"] if ca else []))
        await load.past(10)
    assert load.failed == []
    after = await serials(mesh)
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] == after[name]} == (set() if ca else {"ca"})
    # Whoever was not there meanwhile is let in with a former certificate only while its CA is trusted.
    stranger = TlsFiles(
        ca=str(mesh.state / "pki" / "ca.pem"), cert=str(former["demo-client.pem"]), key=str(former["demo-client.key"])
    )
    address = mesh.file()["services"]["gateway"]["address"]
    async with make_channel(address, tls=stranger, server_name="gateway.weir.internal") as channel:
        if ca:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        else:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
