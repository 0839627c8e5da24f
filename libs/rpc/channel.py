"""Channels: those of the mesh, and what keeps any of them up to date with its certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from libs.config import TlsFiles
from libs.rpc.credentials import Material, TlsSource, channel_credentials
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
    return open_channel(target, tls=tls, server_name=server_name, options=all_options, interceptors=interceptors)


def open_channel(
    target: str,
    *,
    tls: TlsFiles | None,
    server_name: str | None,
    options: Sequence[tuple[str, Any]],
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
) -> grpc.aio.Channel:
    """A channel with these options only, for servers that are not the mesh's own; arguments as of `make_channel`.

    :raises OSError: a TLS file cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options, interceptors=interceptors)
    named = [*options, ("grpc.ssl_target_name_override", server_name)] if server_name else options

    def connect(material: Material) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(target, channel_credentials(material), options=named, interceptors=interceptors)

    return _RenewedChannel(TlsSource(tls), connect)


class _RenewedChannel(grpc.aio.Channel):
    """A channel that is opened anew, at the next call, when its TLS files have changed: gRPC for Python has no
    credentials that change. Calls under way go on over the former one, which ends with the last of them."""

    def __init__(self, source: TlsSource, connect: Callable[[Material], grpc.aio.Channel]) -> None:
        self._source = source
        self._connect = connect
        self._material = source.current()
        self._channel = connect(self._material)
        self._closed = False

    def current(self) -> grpc.aio.Channel:
        """The channel for a new call."""
        latest = self._source.current()
        if latest is not self._material and not self._closed:
            self._material = latest
            self._channel = self._connect(latest)
        return self._channel

    def unary_unary(self, *args: Any, **named: Any) -> Any:
        """See `grpc.aio.Channel`, also for the rest."""
        return _Method(self, "unary_unary", args, named)

    def unary_stream(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "unary_stream", args, named)

    def stream_unary(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "stream_unary", args, named)

    def stream_stream(self, *args: Any, **named: Any) -> Any:
        return _Method(self, "stream_stream", args, named)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.current().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Method:
    """A method of a stub: made for one channel, and again for the next."""

    __slots__ = ("_args", "_channel", "_kind", "_made", "_made_for", "_named")

    def __init__(self, channel: _RenewedChannel, kind: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._channel = channel
        self._kind = kind
        self._args = args
        self._named = named
        self._made_for: grpc.aio.Channel | None = None
        self._made: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        channel = self._channel.current()
        if channel is not self._made_for:
            self._made = getattr(channel, self._kind)(*self._args, **self._named)
            self._made_for = channel
        return self._made(*args, **named)
