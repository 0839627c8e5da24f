"""The gRPC health probe against a real server: it follows SERVING, over mTLS, and refuses a stranger."""

import asyncio
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from libs.config import TlsFiles
from libs.pki import issue_all
from libs.rpc.server import bind, make_server
from libs.supervisor.probes import check, follow
from libs.supervisor.spec import GrpcProbe

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def start(tls: TlsFiles, port: int = 0) -> tuple[grpc.aio.Server, HealthServicer, int]:
    health = HealthServicer()
    await health.set("", NOT_SERVING)
    server = make_server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    bound = bind(server, f"127.0.0.1:{port}", tls=tls)
    await server.start()
    return server, health, bound


async def test_health_is_followed_through_changes_and_a_restart(tmp_path: Path) -> None:
    files = {name: TlsFiles(f.ca, f.cert, f.key) for name, f in issue_all(tmp_path, ("audit", "probe")).items()}
    server, health, port = await start(files["audit"])
    seen: asyncio.Queue[bool] = asyncio.Queue()

    async def expect(value: bool) -> None:
        async with asyncio.timeout(20):
            while await seen.get() is not value:
                pass

    probe = GrpcProbe(port=port, tls=files["probe"], server_name="audit.weir.internal")
    follower = asyncio.create_task(follow(probe, seen.put_nowait))
    await expect(False)
    await health.set("", SERVING)
    await expect(True)
    assert await check(probe)
    await health.set("", NOT_SERVING)
    await expect(False)
    assert not await check(probe)
    await server.stop(None)
    await expect(False)
    server, health, _ = await start(files["audit"], port)
    await health.set("", SERVING)
    await expect(True)
    follower.cancel()
    await asyncio.wait((follower,))
    await server.stop(None)


async def test_a_stranger_on_the_port_is_not_taken_for_the_service(tmp_path: Path) -> None:
    files = {name: TlsFiles(f.ca, f.cert, f.key) for name, f in issue_all(tmp_path, ("router", "probe")).items()}
    server, health, port = await start(files["router"])
    await health.set("", SERVING)
    assert await check(GrpcProbe(port=port, tls=files["probe"], server_name="router.weir.internal"))
    assert not await check(GrpcProbe(port=port, tls=files["probe"], server_name="audit.weir.internal"))
    await server.stop(None)
