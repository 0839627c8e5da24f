"""What an empty call costs on this machine right now: in this unit a mesh's cost does not depend on the hour."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc

from libs.authority.identity import Identity
from libs.pki import issue
from loadtest.figures import around
from loadtest.scenarios import LoadError

T = TypeVar("T")

_METHOD = "/bench.Empty/Call"
_WARM_UP = 100


async def between(
    pki: Path, window: Callable[[int], Awaitable[T]], *, windows: int, calls: int
) -> tuple[list[T], list[float]]:
    """What each of the windows gives, and what an empty call cost around it, µs: it is measured between them, since a
    machine's speed changes within a minute.

    :raises LoadError: a call failed.
    """
    marks, found = [await cpu_seconds(pki, calls=calls)], []
    for number in range(windows):
        found.append(await window(number))
        marks.append(await cpu_seconds(pki, calls=calls))
    return found, [mark * 1e6 for mark in around(marks)]


async def cpu_seconds(pki: Path, *, calls: int) -> float:
    """CPU of one unary mTLS call of `grpc.aio`, no message and no interceptor, one after the other: both ends, this
    process.

    :raises LoadError: a call failed.
    """
    ca, key, cert = _material(pki)

    async def answer(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Empty", {"Call": handler}),))
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        options = (("grpc.ssl_target_name_override", "bench.weir.internal"),)
        secure = grpc.ssl_channel_credentials(ca, key, cert)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", secure, options) as channel:
            call = channel.unary_unary(_METHOD)
            began = 0.0
            for number in range(-_WARM_UP, calls):
                if number == 0:
                    began = time.process_time()
                await call(b"", timeout=10)
            return (time.process_time() - began) / calls
    except grpc.aio.AioRpcError as error:
        raise LoadError(f"an empty call failed: {error.code().name} {error.details()}") from None
    finally:
        await server.stop(None)


def _material(pki: Path) -> tuple[bytes, bytes, bytes]:
    own = issue(pki, Identity("bench"))
    return Path(own.ca).read_bytes(), Path(own.key).read_bytes(), Path(own.cert).read_bytes()
