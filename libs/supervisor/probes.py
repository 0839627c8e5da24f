"""Readiness of a foreign process, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.authority.identity import dns_name
from libs.rpc import make_channel
from libs.supervisor.spec import EtcdProbe, GrpcProbe, HttpProbe, Probe, TcpProbe

RETRY_SECONDS = 0.05
"""Between two looks at a process that is not ready. A refused connection on loopback costs well under a millisecond."""
STEADY_SECONDS = 5.0
"""Between two looks at one that is."""
QUIET_SECONDS = 10.0
"""Between two looks at one that tells its changes by itself; half of it once one had no answer."""
_ATTEMPT_SECONDS = 2.0
_UNHEARD = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_READ = b"\n\x01\0"
"""etcd's RangeRequest for one key: linearizable, so there is a leader, as in etcd's own health check."""
_OWN_READ = _READ + b"8\x01"
"""The same, serializable: the member answers by itself."""


class Look(Enum):
    """What a look at a process found."""

    READY = "ready"
    UNREADY = "unready"
    """It answers, but does not serve: whoever it needs may be away."""
    SILENT = "silent"
    """It does not answer."""


Report = Callable[[Look], None]


async def follow(probe: Probe, report: Report) -> None:
    """Reports what is found, again and again, and changes as soon as they are seen; runs until cancelled.

    :raises Exception: what a probe may come to, such as OSError for a missing certificate, and what `report` raises.
    """
    if isinstance(probe, GrpcProbe):
        await _follow_health(probe, report)
    if isinstance(probe, EtcdProbe):
        await _follow_etcd(probe, report)
    while True:
        look = await check(probe)
        report(look)
        await asyncio.sleep(STEADY_SECONDS if look is Look.READY else RETRY_SECONDS)


async def check(probe: Probe) -> Look:
    """Looks once; SILENT when there is no answer within two seconds, or four from an etcd."""
    match probe:
        case TcpProbe():
            return Look.READY if await _accepts(probe) else Look.SILENT
        case HttpProbe():
            return await _answers(probe)
        case GrpcProbe():
            async with _channel(probe) as channel:
                return await _health(channel, _request(probe)) if await _accepts(probe) else Look.SILENT
        case EtcdProbe():
            async with _etcd(probe) as channel:
                return await _refuses(channel) if await _accepts(probe) else Look.SILENT


async def _accepts(probe: Probe) -> bool:
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            _, writer = await asyncio.open_connection(probe.host, probe.port)
            await _close(writer)
    except OSError:  # TimeoutError is one
        return False
    return True


async def _answers(probe: HttpProbe) -> Look:
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            reader, writer = await asyncio.open_connection(probe.host, probe.port)
            try:
                writer.write(f"GET {probe.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                status = (await reader.readline()).split()
            finally:
                await _close(writer)
    except (OSError, ValueError):
        return Look.SILENT
    if len(status) < 2:
        return Look.SILENT
    return Look.READY if status[1] == b"200" else Look.UNREADY


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _health(channel: grpc.aio.Channel, request: health_pb2.HealthCheckRequest) -> Look:
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ATTEMPT_SECONDS)
    except grpc.aio.AioRpcError as error:
        return Look.SILENT if error.code() in _UNHEARD else Look.UNREADY
    return _meant(answer)


def _meant(answer: health_pb2.HealthCheckResponse) -> Look:
    return Look.READY if answer.status == health_pb2.HealthCheckResponse.SERVING else Look.UNREADY


async def _refuses(channel: grpc.aio.Channel) -> Look:
    for read in (_READ, _OWN_READ):
        try:
            await channel.unary_unary("/etcdserverpb.KV/Range")(read, timeout=_ATTEMPT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNHEARD:
                continue  # perhaps only because the others are away without whom there is no leader
            refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
            return Look.READY if refused and read is _READ else Look.UNREADY
        return Look.UNREADY
    return Look.SILENT


async def _follow_etcd(probe: EtcdProbe, report: Report) -> None:
    """Asks over one connection for as long as etcd answers: a TLS handshake costs more than all the rest."""
    while True:
        look = Look.SILENT
        if await _accepts(probe):
            async with _etcd(probe) as channel:
                while (look := await _refuses(channel)) is Look.READY:
                    report(look)
                    await asyncio.sleep(STEADY_SECONDS)
        report(look)
        await asyncio.sleep(RETRY_SECONDS)


async def _follow_health(probe: GrpcProbe, report: Report) -> None:
    while True:
        # gRPC's own reconnect waits a second; a plain connect finds the opened port within RETRY_SECONDS.
        if await _accepts(probe):
            async with _channel(probe) as channel:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await _listen(channel, _request(probe), report)
        report(Look.SILENT)
        await asyncio.sleep(RETRY_SECONDS)


async def _listen(channel: grpc.aio.Channel, request: health_pb2.HealthCheckRequest, report: Report) -> None:
    """`Watch` pushes every change; one who has nothing to tell is asked now and then whether he still can.

    :raises grpc.aio.AioRpcError: the stream broke.
    """
    stream = health_pb2_grpc.HealthStub(channel).Watch(request)
    pause = QUIET_SECONDS
    while True:
        reading = asyncio.ensure_future(stream.read())  # to cancel a read would end the stream
        try:
            while not (await asyncio.wait((reading,), timeout=pause))[0]:
                look = await _health(channel, request)
                pause = QUIET_SECONDS / 2 if look is Look.SILENT else QUIET_SECONDS
                report(look)
        except BaseException:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            raise
        if (answer := reading.result()) is grpc.aio.EOF:
            return
        report(_meant(answer))


def _request(probe: GrpcProbe) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=probe.service)


def _etcd(probe: EtcdProbe) -> grpc.aio.Channel:
    return _open(probe, dns_name("etcd"))


def _channel(probe: GrpcProbe) -> grpc.aio.Channel:
    return _open(probe, probe.server_name or None)


def _open(probe: GrpcProbe | EtcdProbe, server_name: str | None) -> grpc.aio.Channel:
    return make_channel(f"{probe.host}:{probe.port}", tls=probe.tls, server_name=server_name, translate_errors=False)
