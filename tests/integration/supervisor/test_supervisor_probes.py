"""Probes against real servers: health over mTLS and its changes, strangers, and who answers from who does not."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from libs.config import TlsFiles
from libs.pki import issue_all
from libs.rpc.server import bind, make_server
from libs.supervisor.probes import Look, check, follow
from libs.supervisor.spec import EtcdProbe, GrpcProbe, HttpProbe, Probe

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
    seen: asyncio.Queue[Look] = asyncio.Queue()

    async def expect(value: Look) -> None:
        async with asyncio.timeout(20):
            while await seen.get() is not value:
                pass

    probe = GrpcProbe(port=port, tls=files["probe"], server_name="audit.weir.internal")
    follower = asyncio.create_task(follow(probe, seen.put_nowait))
    await expect(Look.UNREADY)
    await health.set("", SERVING)
    await expect(Look.READY)
    assert await check(probe) is Look.READY
    await health.set("", NOT_SERVING)
    await expect(Look.UNREADY)
    assert await check(probe) is Look.UNREADY
    await server.stop(None)
    await expect(Look.SILENT)
    server, health, _ = await start(files["audit"], port)
    await health.set("", SERVING)
    await expect(Look.READY)
    follower.cancel()
    await asyncio.wait((follower,))
    await server.stop(None)


async def test_a_stranger_on_the_port_is_not_taken_for_the_service(tmp_path: Path) -> None:
    files = {name: TlsFiles(f.ca, f.cert, f.key) for name, f in issue_all(tmp_path, ("router", "probe")).items()}
    server, health, port = await start(files["router"])
    await health.set("", SERVING)
    for server_name, look in (("router.weir.internal", Look.READY), ("audit.weir.internal", Look.SILENT)):
        assert await check(GrpcProbe(port=port, tls=files["probe"], server_name=server_name)) is look
    await server.stop(None)


async def looked(probe: Probe, *, times: int) -> set[Look]:
    """What so many looks at a process find."""
    seen: asyncio.Queue[Look] = asyncio.Queue()
    follower = asyncio.create_task(follow(probe, seen.put_nowait))
    async with asyncio.timeout(30):
        found = {await seen.get() for _ in range(times)}
    follower.cancel()
    await asyncio.wait((follower,))
    return found


@pytest.mark.parametrize("kind", ["grpc", "etcd", "http"])
async def test_f7_a_process_that_takes_connections_and_says_nothing_is_silent(tmp_path: Path, kind: str) -> None:
    """As one that stands still: its kernel goes on taking them."""
    [own] = issue_all(tmp_path, ("probe",)).values()
    files = TlsFiles(own.ca, own.cert, own.key)
    with socket.create_server(("127.0.0.1", 0)) as taking:
        port = taking.getsockname()[1]
        if kind == "grpc":  # its `Watch` waits for ever, so that it must be asked
            assert await check(GrpcProbe(port=port, tls=files)) is Look.SILENT
        else:
            probe = EtcdProbe(port=port, tls=files) if kind == "etcd" else HttpProbe(port=port)
            assert await looked(probe, times=2) == {Look.SILENT}


async def test_f7_a_health_stream_that_falls_silent_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.supervisor.probes.QUIET_SECONDS", 0.01)
    hangs = asyncio.Event()

    class Health(HealthServicer):
        async def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:  # noqa: N802
            if hangs.is_set():
                await asyncio.Event().wait()
            return health_pb2.HealthCheckResponse(status=SERVING)

    server = make_server()
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    seen: asyncio.Queue[Look] = asyncio.Queue()
    follower = asyncio.create_task(follow(GrpcProbe(port=port), seen.put_nowait))
    async with asyncio.timeout(20):
        for _ in range(3):
            assert await seen.get() is Look.READY
        hangs.set()
        while await seen.get() is not Look.SILENT:
            pass
    follower.cancel()
    await asyncio.wait((follower,))
    await server.stop(None)


async def test_f7_an_etcd_without_a_leader_answers(tmp_path: Path) -> None:
    """The others are away: to start this one anew would help nobody."""
    [own] = issue_all(tmp_path, ("etcd",)).values()
    files = TlsFiles(own.ca, own.cert, own.key)

    async def read(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if request.endswith(b"8\x01"):  # serializable
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
        return b""

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(read)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("etcdserverpb.KV", {"Range": method}),))
    port = bind(server, "127.0.0.1:0", tls=files)
    await server.start()
    assert await looked(EtcdProbe(port=port, tls=files), times=2) == {Look.UNREADY}
    await server.stop(None)
