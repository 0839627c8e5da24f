"""What the edge costs, and how soon a revoked key is refused: `python -m loadtest.bench_edge`.

A real Envoy with the mesh's own configuration, real edge-auth and limiter over mTLS; a stand-in answers for the
gateway. CPU is Envoy's, edge-auth's and the limiter's, per request; not the stand-in's, nor the load generator's. The
control plane and the registry (in memory) share edge-auth's and the limiter's process, and do nothing meanwhile.
`edge_us_*` of loadtest.mesh are of the whole mesh, where a gateway refuses the request at first sight.

    edge_alone_us_known     callers who were asked about a moment ago, far from their limits
    edge_alone_us_over      the same over a limit: the limiter refuses each
    edge_alone_us_asked     the same with `edge.known_callers` off
    edge_alone_us_bad_key   keys that were never seen before, all from one address
    edge_alone_us_same_key  one bad key again and again
    edge_alone_us_bare      an Envoy that only passes the same bytes on, over mTLS as well: the floor
    edge_alone_system_share  of what a known caller costs, the part that the kernel takes
    revocation_ms_p99       under load, from a revocation's write to the beginning of the last request that was served
    revocation_quiet_ms_max  the same while no revocation is pushed
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import uvloop
from google.api import httpbody_pb2
from weir.openai.v1 import openai_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.registry import MemoryStore, Put, keys
from libs.rpc.server import bind
from libs.service import serve
from loadtest.accounting import cpu_seconds
from loadtest.figures import percentile, table
from loadtest.helper import helper
from loadtest.http_client import Connection, Reply, post
from loadtest.overload import output
from loadtest.peers.contenders import bare_envoy
from services.edge_auth.app import build as build_edge_auth
from services.edge_auth.config import Settings as EdgeAuthSettings
from services.ratelimit.app import build as build_limiter
from services.ratelimit.config import Settings as LimiterSettings
from tests.support.certificates import tls_of
from tests.support.edge import EnvoyProcess, control_plane, edge_config, put_endpoint
from tests.support.upstreams import FakeGateway

TENANTS, CONNECTIONS, LIMIT = 64, 8, 10**9
CHAT, METHOD = "/v1/chat/completions", "/weir.openai.v1.OpenAIService/CreateChatCompletion"
BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 400 + b'"}]}'
FULL_SECONDS, QUICK_SECONDS, SMOKE_SECONDS = 8.0, 3.0, 1.0
TARGETS = {
    "edge_alone_us_known": "≤ 250",
    "edge_alone_known_of_asked": "≤ 0.2",
    "edge_alone_us_bad_key": "≤ 120",
    "revocation_ms_p99": "≤ 100",
    "revocation_quiet_ms_max": "≤ 2000",
}
PEPPER = b"a pepper of the bench, long enough"


def key_of(number: int) -> apikeys.ParsedKey:
    """A tenant's key, the same one in both processes."""
    return apikeys.make(lambda size: number.to_bytes(size, "big"))


def stored(number: int) -> pb.ApiKey:
    """The key as the registry has it."""
    key = key_of(number)
    return pb.ApiKey(id=key.id, tenant=f"t{number}", hash=apikeys.hash_key(key, PEPPER), scopes=["inference"])


async def served(folder: Path, gateway: int, known: bool) -> None:
    """The services. Prints the control plane's port and then, for every key's number on standard input ("7", or "7
    quietly"), when it was revoked."""
    store, pki = MemoryStore(), folder / "pki"
    (folder / "pepper").write_bytes(PEPPER)
    messages: list[Any] = []
    for number in range(TENANTS):
        # The last tenant is soon over its limit.
        requests = 8 if number == TENANTS - 1 else LIMIT
        limits = pb.Limits(tenant=f"t{number}", model="*", requests_per_minute=requests, tokens_per_minute=LIMIT)
        messages += [pb.Tenant(id=f"t{number}", plan=pb.PLAN_PAID), stored(number), limits]
    await store.txn(puts=[Put(keys.key_of(message), keys.encode(message)) for message in messages])
    auth_settings = EdgeAuthSettings(
        service="edge_auth",
        instance="edge-auth-0",
        tls=tls_of(pki, "edge-auth"),
        pepper_file=str(folder / "pepper"),
        audit_target="",
    )
    limiter_settings = LimiterSettings(
        service="ratelimit", instance="ratelimit-0", tls=tls_of(pki, "ratelimit"), audit_target=""
    )
    edge = edge_config(pki, access_log=False, known_callers=known, source_requests_per_second=LIMIT)
    auth, limiter = (
        await build_edge_auth(auth_settings, store=store),
        await build_limiter(limiter_settings, store=store),
    )
    async with contextlib.AsyncExitStack() as stack:
        for name, service, settings in (("edge-auth", auth, auth_settings), ("ratelimit", limiter, limiter_settings)):
            running = await stack.enter_async_context(serve(service, settings))
            await running.ready.wait()
            await put_endpoint(store, name, f"{name}-0", running.port)
        await put_endpoint(store, "gateway", "gateway-0", gateway)
        await put_endpoint(store, "registry", "registry-0", gateway)
        plane = await stack.enter_async_context(control_plane(store=store, tls=tls_of(pki, "controlplane"), edge=edge))
        say(str(plane.port))
        while line := await asyncio.to_thread(sys.stdin.readline):
            key, *quietly = line.split()
            revoked = stored(int(key))
            revoked.revoked_at.GetCurrentTime()
            pushed = [] if quietly else [Put(keys.EPOCH, secrets.token_bytes(4))]
            began = time.perf_counter()
            await store.txn(puts=[Put(keys.key_of(revoked), keys.encode(revoked)), *pushed])
            say(str(began))


def say(line: str) -> None:
    """To the other process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Rig:
    """Everything that runs."""

    envoy: EnvoyProcess
    child: Process | None
    """The services, where there are any."""
    port: int

    async def answered(self) -> str:
        """The next line of the services."""
        assert self.child is not None
        assert self.child.stdout is not None
        return (await self.child.stdout.readline()).decode().strip()

    def cpu(self) -> float:
        """Seconds of the edge and its services."""
        services = cpu_seconds(self.child.pid) if self.child is not None else 0.0
        return cpu_seconds(self.envoy.process.pid) + services

    async def cost(self, seconds: float, requests: Iterator[bytes], status: int) -> tuple[float, float]:
        """Microseconds of a request, and which part of Envoy's the kernel takes; the last answers have this status."""
        last: dict[Connection, Reply] = {}
        connections = [Connection("127.0.0.1", self.port) for _ in range(CONNECTIONS)]

        async def one(connection: Connection, until: float) -> int:
            count = 0
            while time.perf_counter() < until:
                last[connection] = await connection.send(next(requests))
                count += 1
            return count

        async def all_for(seconds: float) -> int:
            until = time.perf_counter() + seconds
            return sum(await asyncio.gather(*(one(each, until) for each in connections)))

        await all_for(seconds / 4)
        before, ticks = self.cpu(), self.envoy.process.cpu_times()
        count = await all_for(seconds)
        used, after = self.cpu() - before, self.envoy.process.cpu_times()
        user, system = after.user - ticks.user, after.system - ticks.system
        for connection in connections:
            connection.close()
        if faults := [reply for reply in last.values() if reply.status != status]:
            raise RuntimeError(f"status {faults[0].status}: {faults[0].body[:300]!r}")
        return used / count * 1e6, system / max(user + system, 0.01)

    async def revocation(self, number: int, *, quietly: bool) -> float:
        """Milliseconds from a revocation to the beginning of the last request that was served, under load."""
        assert self.child is not None
        assert self.child.stdin is not None
        request, last, over = post("edge", CHAT, key_of(number).text, BODY), 0.0, False

        async def asks() -> None:
            nonlocal last, over
            connection = Connection("127.0.0.1", self.port)
            refused = 0
            while refused < 5:  # a request that was under way may be answered after the first refusal
                began = time.perf_counter()
                if (await connection.send(request)).status == 200:
                    last, refused = max(last, began), 0
                else:
                    refused += 1
            connection.close()
            over = True

        async def others(number: int) -> None:
            connection, own = Connection("127.0.0.1", self.port), post("edge", CHAT, key_of(number).text, BODY)
            while not over:
                await connection.send(own)
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(asks())
            for each in range(4):
                group.create_task(others(each))
            await asyncio.sleep(0.3)
            self.child.stdin.write(f"{number}{' quietly' if quietly else ''}\n".encode())
            revoked = float(await self.answered())
        return max(0.0, last - revoked) * 1e3


@contextlib.asynccontextmanager
async def rig(folder: Path, name: str, *, known: bool) -> AsyncIterator[Rig]:
    """Runs while the block does."""
    pki = folder / "pki"
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(stand_in(pki))
        words = ("-m", "loadtest.bench_edge", "--serve", json.dumps([str(folder), gateway, known]))
        child = await stack.enter_async_context(helper(*words, stdin=PIPE, stdout=PIPE))
        assert child.stdout is not None
        xds = f"127.0.0.1:{(await child.stdout.readline()).decode().strip()}"
        envoy = EnvoyProcess(folder / name, xds=xds, tls=tls_of(pki, "envoy"))
        stack.push_async_callback(envoy.stop)
        await envoy.start(("edge-http",))
        for service in ("edge-auth", "ratelimit", "gateway"):
            await envoy.wait_counter(f"cluster.{service}.membership_total", bool)
        yield Rig(envoy, child, (await envoy.listeners())["edge-http"])


@contextlib.asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Rig]:
    """An Envoy without any of the edge's filters, in front of the same gateway."""
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(stand_in(folder / "pki"))
        tls = tls_of(folder / "pki", "envoy")
        envoy = EnvoyProcess(folder / "bare", xds="", tls=tls)
        stack.push_async_callback(envoy.stop)
        admin = {"admin": {"address": {"pipe": {"path": "admin.sock"}}}}
        await envoy.start(("peer",), json.dumps(bare_envoy(0, gateway, tls) | admin))
        yield Rig(envoy, None, (await envoy.listeners())["peer"])


@contextlib.asynccontextmanager
async def stand_in(pki: Path) -> AsyncIterator[int]:
    """What answers for the gateway: its port."""
    server = grpc.aio.server()
    openai_pb2_grpc.add_OpenAIServiceServicer_to_server(FakeGateway(), server)
    port = bind(server, "127.0.0.1:0", tls=tls_of(pki, "gateway"))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def framed(key: str) -> bytes:
    """The request as the edge passes it on: of gRPC, which an Envoy that only passes bytes on does not make of JSON."""
    message = httpbody_pb2.HttpBody(content_type="application/json", data=BODY).SerializeToString()
    request = post("edge", METHOD, key, b"\0" + len(message).to_bytes(4, "big") + message)
    return request.replace(b"content-type: application/json", b"content-type: application/grpc\r\nte: trailers", 1)


async def measure(seconds: float, folder: Path) -> dict[str, float]:
    """Every figure."""
    good = [post("edge", CHAT, key_of(number).text, BODY) for number in range(TENANTS - 1)]
    over = post("edge", CHAT, key_of(TENANTS - 1).text, BODY)
    figures: dict[str, float] = {}
    async with rig(folder, "asked", known=False) as edge:
        figures["edge_alone_us_asked"], _ = await edge.cost(seconds, itertools.cycle(good), 200)
        figures["edge_alone_us_asked_bad_key"], _ = await edge.cost(seconds, strangers(), 401)
    async with rig(folder, "known", known=True) as edge:
        known = await edge.cost(seconds, itertools.cycle(good), 200)
        figures["edge_alone_us_known"], figures["edge_alone_system_share"] = known
        figures["edge_alone_us_over"], _ = await edge.cost(seconds, itertools.cycle([over]), 429)
        figures["edge_alone_us_bad_key"], _ = await edge.cost(seconds, strangers(), 429)
        figures["edge_alone_us_same_key"], _ = await edge.cost(seconds, itertools.cycle([next(strangers())]), 401)
        pushed = [await edge.revocation(number, quietly=False) for number in range(4, 4 + max(1, int(seconds * 5)))]
        quiet = [await edge.revocation(number, quietly=True) for number in range(50, 50 + max(1, int(seconds)))]
    async with bare(folder) as edge:
        figures["edge_alone_us_bare"], _ = await edge.cost(seconds, itertools.cycle([framed(key_of(0).text)]), 200)
    figures["edge_alone_known_of_asked"] = figures["edge_alone_us_known"] / figures["edge_alone_us_asked"]
    figures["revocation_ms_p50"], figures["revocation_ms_p99"] = percentile(pushed, 0.5), percentile(pushed, 0.99)
    figures["revocation_quiet_ms_max"] = max(quiet)
    return figures


def strangers() -> Iterator[bytes]:
    """Requests with keys that nobody has."""
    while True:
        yield post("edge", CHAT, apikeys.make(secrets.token_bytes).text, BODY)


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--serve"]:
        folder, gateway, known = json.loads(sys.argv[2])
        uvloop.run(served(Path(folder), gateway, known))
        return
    options = output.options(__doc__, smoke=True).parse_args()
    output.begin(options.nice)
    seconds = output.extent(options, FULL_SECONDS, QUICK_SECONDS, SMOKE_SECONDS)
    parts = output.Parts()
    with parts.part("edge"), tempfile.TemporaryDirectory(prefix="weir-edge-") as folder:
        parts.figures |= uvloop.run(measure(seconds, Path(folder)))
    output.say(table(("figure", "value"), [(name, f"{value:.3g}") for name, value in parts.figures.items()]))
    conditions = {"connections": CONNECTIONS, "tenants": TENANTS, "seconds": seconds, "listener": "plain, HTTP/1.1"}
    output.finish("edge", parts, TARGETS, conditions)


if __name__ == "__main__":
    main()
