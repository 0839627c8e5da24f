"""Channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from libs.config import TlsFiles
from libs.rpc.credentials import channel_credentials
from libs.rpc.interceptors import client_interceptors
from libs.rpc.wire import WIRE_OPTIONS

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.max_send_message_length", 16 * 2**20),
    *WIRE_OPTIONS,
    # A dead peer behind an open connection is found within seconds, also while no call is in flight.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer is found again quickly; the default ceiling is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Channels of one process to one address carry different identities in tests; do not share sockets between them.
    ("grpc.use_local_subchannel_pool", 1),
]


def make_channel(
    target: str,
    *,
    tls: TlsFiles | None,
    server_name: str | None = None,
    translate_errors: bool = False,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """A channel to "host:port" or "xds:///<service>.weir.internal".

    `server_name` is the name that the peer's certificate must carry when the target is an address
    ("worker.weir.internal"). `translate_errors` makes failed calls raise `WeirError` and refuses unary calls without a
    timeout; multiplexed streams leave it off, since they carry errors in their frames and an intercepted stream costs
    an extra queue per message.
    """
    all_options = [*_OPTIONS, *options]
    interceptors = client_interceptors() if translate_errors else None
    if tls is None:
        return grpc.aio.insecure_channel(target, options=all_options, interceptors=interceptors)
    if server_name:
        all_options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(target, channel_credentials(tls), options=all_options, interceptors=interceptors)
