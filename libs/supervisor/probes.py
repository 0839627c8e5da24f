"""Readiness of a foreign process, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.rpc import make_channel
from libs.supervisor.spec import EtcdProbe, GrpcProbe, HttpProbe, Probe, TcpProbe

RETRY_SECONDS = 0.05
"""Between two looks at a process that is not ready. A refused connection on loopback costs well under a millisecond."""
STEADY_SECONDS = 2.0
"""Between two looks at one that is."""
_ATTEMPT_SECONDS = 2.0


async def follow(probe: Probe, report: Callable[[bool], None]) -> None:
    """Reports whether the process is ready, whenever that may have changed; runs until cancelled."""
    if isinstance(probe, GrpcProbe):
        await _follow_health(probe, report)
    if isinstance(probe, EtcdProbe):
        await _follow_etcd(probe, report)
    while True:
        ready = await check(probe)
        report(ready)
        await asyncio.sleep(STEADY_SECONDS if ready else RETRY_SECONDS)


async def check(probe: Probe) -> bool:
    """Asks once; False within two seconds when there is no answer."""
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            match probe:
                case TcpProbe():
                    return await _accepts(probe.host, probe.port)
                case HttpProbe():
                    return await _answers(probe)
                case GrpcProbe():
                    return await _accepts(probe.host, probe.port) and await _serves(probe)
                case EtcdProbe():
                    async with _etcd(probe) as channel:
                        return await _accepts(probe.host, probe.port) and await _refuses(channel)
    except TimeoutError:
        return False


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    await _close(writer)
    return True


async def _answers(probe: HttpProbe) -> bool:
    try:
        reader, writer = await asyncio.open_connection(probe.host, probe.port)
    except OSError:
        return False
    try:
        writer.write(f"GET {probe.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readline()).split()
    except (OSError, ValueError):
        return False
    finally:
        await _close(writer)
    return len(status) > 1 and status[1] == b"200"


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _serves(probe: GrpcProbe) -> bool:
    request = health_pb2.HealthCheckRequest(service=probe.service)
    async with _channel(probe) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ATTEMPT_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def _refuses(channel: grpc.aio.Channel) -> bool:
    try:
        # A linearizable read of one key, as etcd's own health check does: there is a leader.
        await channel.unary_unary("/etcdserverpb.KV/Range")(b"\n\x01\0", timeout=_ATTEMPT_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.PERMISSION_DENIED
    return False


async def _follow_etcd(probe: EtcdProbe, report: Callable[[bool], None]) -> None:
    """Asks over one connection for as long as etcd answers: a TLS handshake costs more than all the rest."""
    while True:
        await _opened(probe)
        async with _etcd(probe) as channel:
            while await _refuses(channel):
                report(True)
                await asyncio.sleep(STEADY_SECONDS)
        report(False)
        await asyncio.sleep(RETRY_SECONDS)


async def _follow_health(probe: GrpcProbe, report: Callable[[bool], None]) -> None:
    """`Watch` pushes every change, so a ready process is never polled."""
    request = health_pb2.HealthCheckRequest(service=probe.service)
    while True:
        await _opened(probe)
        async with _channel(probe) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for answer in health_pb2_grpc.HealthStub(channel).Watch(request):
                    report(answer.status == health_pb2.HealthCheckResponse.SERVING)
        report(False)
        await asyncio.sleep(RETRY_SECONDS)


async def _opened(probe: GrpcProbe | EtcdProbe) -> None:
    # gRPC's own reconnect waits a second; a plain connect finds the opened port within RETRY_SECONDS.
    while not await _accepts(probe.host, probe.port):  # noqa: ASYNC110 - a foreign process has no event
        await asyncio.sleep(RETRY_SECONDS)


def _etcd(probe: EtcdProbe) -> grpc.aio.Channel:
    return make_channel(
        f"{probe.host}:{probe.port}", tls=probe.tls, server_name="etcd.weir.internal", translate_errors=False
    )


def _channel(probe: GrpcProbe) -> grpc.aio.Channel:
    return make_channel(f"{probe.host}:{probe.port}", tls=probe.tls, server_name=probe.server_name or None)
