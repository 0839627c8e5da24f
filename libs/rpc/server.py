"""Servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from libs.config import TlsFiles
from libs.rpc.credentials import server_credentials
from libs.rpc.identity import MayCall
from libs.rpc.interceptors import ErrorInterceptor
from libs.rpc.wire import WIRE_OPTIONS

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", 16 * 2**20),
    *WIRE_OPTIONS,
    # Two processes on one port would share its connections silently; a taken port must be an error.
    ("grpc.so_reuseport", 0),
    # Clients ping every 10 s (libs.rpc.channel); the default would answer that with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


def make_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: Sequence[tuple[str, Any]] = (),
    deadline_optional: Sequence[str] = (),
    max_message_bytes: int = 16 * 2**20,
    may_call: MayCall | None = None,
) -> grpc.aio.Server:
    """A server with the mesh's interceptors. Bind it with `bind`; keep a reference, or its port closes.

    `deadline_optional` lists method prefixes ("/weir.inference.v1.") whose unary calls may come without a deadline
    because the servicer applies a default. `max_message_bytes` is the largest message that it receives. `may_call`
    tells who may call what, by certificate (`libs.authority.calls`); None lets in whoever connects.
    """
    return grpc.aio.server(
        interceptors=[ErrorInterceptor(deadline_optional=tuple(deadline_optional), may_call=may_call), *interceptors],
        options=[*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes), *options],
    )


def bind(server: grpc.aio.Server, address: str, *, tls: TlsFiles | None) -> int:
    """Listen on "host:port" (port 0 takes a free one) and return the port.

    :raises OSError: the port is taken.
    """
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        raise OSError(str(error)) from error
